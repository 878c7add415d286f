"""The verb `label`: pseudo-labels of the unlabeled images as a CSV file, for a person to review.

The columns are path, label, confidence, threshold, trusted. `fastssl convert FOLDER OUT --labels
FILE` reads the first two. `threshold` is that of the image's class: the algorithm's threshold for
the class at the checkpoint if it has one, else its fixed threshold, else 0.95. `trusted` is yes
if the confidence reaches the threshold, else no; `given` marks a label that the user gave.
"""

from __future__ import annotations

import csv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl.errors import ConfigError
from fastssl.inference.contact_sheet import write_sheet
from fastssl.inference.prediction_files import open_out
from fastssl.inference.predictor import Predictor
from fastssl.inference.pseudo_label import PseudoLabels, pseudo_label
from pipelines.convert.ensure import ensure_store

HEADER = ["path", "label", "confidence", "threshold", "trusted"]


def label(
    run: Path,
    store: str,
    out: Path,
    *,
    checkpoint: str = "best",
    sheet: Path | None = None,
    min_confidence: float = 0.0,
    trusted_only: bool = False,
    given: bool = False,
    device: str | None = None,
) -> dict[str, Any]:
    """Write pseudo-labels and, if `sheet` is given, a contact sheet; return counts and files."""
    if not 0 <= min_confidence <= 1:
        raise ConfigError(f"min_confidence is {min_confidence}", "give a number from 0 to 1")
    model = Predictor(run, checkpoint, device)
    pseudo_labels = pseudo_label(model, ensure_store(store))
    kept = pseudo_labels.confidence >= min_confidence
    if trusted_only:
        kept &= pseudo_labels.trusted
    written = write(pseudo_labels, kept, out, given=given)
    if sheet is not None:
        write_sheet(pseudo_labels, sheet)
    return {
        "out": str(out),
        "sheet": str(sheet) if sheet else None,
        "images": len(pseudo_labels.indices),
        "trusted": int(pseudo_labels.trusted.sum()),
        "written": written,
        "classes": pseudo_labels.class_rows(),
    }


def write(
    pseudo_labels: PseudoLabels, kept: npt.NDArray[np.bool_], out: Path, *, given: bool = False
) -> int:
    """Write the lines, by class and falling confidence; return their number."""
    paths = pseudo_labels.store.source_paths("train")
    order = np.lexsort((pseudo_labels.indices, -pseudo_labels.confidence, pseudo_labels.label))
    rows = [
        [
            paths[pseudo_labels.indices[one]],
            pseudo_labels.classes[pseudo_labels.label[one]],
            f"{pseudo_labels.confidence[one]:.6f}",
            f"{pseudo_labels.thresholds[pseudo_labels.label[one]]:.6f}",
            "yes" if pseudo_labels.trusted[one] else "no",
        ]
        for one in order
        if kept[one]
    ]
    if given:
        labels = pseudo_labels.store.labels("train")
        labels[pseudo_labels.indices] = -1
        names = pseudo_labels.store.class_names
        known = [[paths[p], names[labels[p]]] for p in np.flatnonzero(labels >= 0)]
        rows = [[*row, "1.000000", "0.000000", "given"] for row in known] + rows
    with ExitStack() as stack:
        csv.writer(open_out(stack, out), lineterminator="\n").writerows([HEADER, *rows])
    return len(rows)
