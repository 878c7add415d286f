"""The verb `label`: pseudo-labels of the unlabeled images as a CSV file, for a person to review.

The columns are path, label, confidence, threshold, trusted, source. `fastssl convert FOLDER OUT
--labels FILE` reads path, label and source. `threshold` is that of the image's class: the
algorithm's threshold for the class at the checkpoint, if it has one, and at least the floor.
`trusted` is yes if the confidence reaches the threshold, else no. `source` is `pseudo`, or `given`
for a label that the user gave; `convert` never puts a pseudo-label into a test set.
"""

from __future__ import annotations

import csv
import itertools
import os
import shlex
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl.errors import ConfigError
from fastssl.inference.contact_sheet import check_name, write_sheet
from fastssl.inference.cross_fit import Retrain, expected_precision
from fastssl.inference.precision import POOR, Precision
from fastssl.inference.prediction_files import open_out
from fastssl.inference.predictor import Predictor
from fastssl.inference.pseudo_label import FLOOR, PseudoLabels, pseudo_label
from fastssl.inference.store_match import resize_notes
from pipelines.convert.ensure import ensure_store
from pipelines.convert.images import interpolation_option
from pipelines.files import open_atomic
from pipelines.store.store import Store
from pipelines.text import for_csv

HEADER = ["path", "label", "confidence", "threshold", "trusted", "source"]


def label(
    run: Path,
    store: str,
    out: Path,
    *,
    refit: Retrain,
    checkpoint: str = "best",
    sheet: Path | None = None,
    floor: float = FLOOR,
    min_confidence: float = 0.0,
    trusted_only: bool = False,
    given: bool = False,
    cross_fit: int | None = None,
    device: str | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Write pseudo-labels and, if `sheet` is given, a contact sheet; return counts and files.

    `refit` fits the classifier of a probe again, see `expected_precision`.
    """
    if not 0 <= min_confidence <= 1:
        raise ConfigError(f"min_confidence is {min_confidence}", "give a number from 0 to 1")
    if sheet is not None:
        check_name(sheet)
    model = Predictor(run, checkpoint, device, trust_code=trust_code)
    found = ensure_store(store)
    pseudo_labels = pseudo_label(model, found, floor)
    precision = expected_precision(model, pseudo_labels, floor, cross_fit, refit)
    kept = pseudo_labels.confidence >= min_confidence
    if trusted_only:
        kept &= pseudo_labels.trusted
    written = write(pseudo_labels, kept, out, given=given)
    command = next_command(found, out)
    if sheet is not None:
        write_sheet(pseudo_labels, sheet)
    return {
        "out": str(out),
        "sheet": str(sheet) if sheet else None,
        "images": len(pseudo_labels.indices),
        "trusted": int(pseudo_labels.trusted.sum()),
        "written": written,
        "classes": pseudo_labels.class_rows(),
        "precision": None if isinstance(precision, str) else asdict(precision),
        "expected": f"not estimated: {precision}" if isinstance(precision, str) else str(precision),
        "warnings": [*resize_notes(model, found), *warnings_on(precision)],
        "next": command,
    }


def write(
    pseudo_labels: PseudoLabels, kept: npt.NDArray[np.bool_], out: Path, *, given: bool = False
) -> int:
    """Write the lines, by class and falling confidence; return their number."""
    paths = pseudo_labels.store.source_paths("train")
    order = np.lexsort((pseudo_labels.indices, -pseudo_labels.confidence, pseudo_labels.label))
    rows = [
        [
            for_csv(paths[pseudo_labels.indices[one]]),
            for_csv(pseudo_labels.classes[pseudo_labels.label[one]]),
            f"{pseudo_labels.confidence[one]:.6f}",
            f"{pseudo_labels.thresholds[pseudo_labels.label[one]]:.6f}",
            "yes" if pseudo_labels.trusted[one] else "no",
            "pseudo",
        ]
        for one in order
        if kept[one]
    ]
    if given:
        labels = pseudo_labels.store.labels("train")
        labels[pseudo_labels.indices] = -1
        names = pseudo_labels.store.class_names
        known = [
            [for_csv(paths[p]), for_csv(names[labels[p]])] for p in np.flatnonzero(labels >= 0)
        ]
        rows = [[*row, "1.000000", "0.000000", "given", "given"] for row in known] + rows
    with ExitStack() as stack:
        csv.writer(open_out(stack, out), lineterminator="\n").writerows([HEADER, *rows])
    return len(rows)


def warnings_on(precision: Precision | str) -> list[str]:
    """Return why the pseudo-labels should not be used without a look at them."""
    if isinstance(precision, str):
        return ["nothing shows how many of the trusted labels are right; check some by hand"]
    if precision.low >= POOR:
        return []
    wrong = f"{100 * (1 - precision.high):.0f} to {100 * (1 - precision.low):.0f}"
    return [
        f"of 100 trusted labels, {wrong} are expected to be wrong (the model is right on "
        f"{100 * precision.accuracy:.0f} % of the {precision.name} images); check every line, or "
        "train with more labels or steps first"
    ]


def next_command(store: Store, out: Path) -> str | None:
    """Return the command that converts the images with the new labels and the same test set.

    The test images are listed in a file beside `out`: otherwise those that lie in the folder
    would become training images. None if the images do not come from a folder.
    """
    sources = {split: store.source_paths(split) for split in store.splits}
    if str(out) == "-" or not all(map(os.path.isabs, itertools.chain(*sources.values()))):
        return None
    folders = [os.path.dirname(path) for path in sources["train"]]
    folder, option = os.path.commonpath(folders), "--labels"
    if store.path.is_relative_to(folder):
        # The images lie in several folders, and what they have in common holds much else. Take the
        # listed images alone, without those that have no label.
        labeled = np.flatnonzero(store.labels("train") >= 0)
        if not len(labeled):
            return None
        folder, option = os.path.commonpath([folders[one] for one in labeled]), "--train-list"
    size = store.splits["train"].height
    arguments = ["fastssl", "convert", folder, f"{store.path}-2", option, str(out)]
    arguments += ["--size", str(size), "--resize", store.manifest.resize]
    arguments += interpolation_option(store.manifest.interpolation)
    if "test" in sources:
        listed = out.with_name(f"{out.stem}-test.csv")
        names = [store.class_names[label] for label in store.labels("test")]
        rows = zip(map(for_csv, sources["test"]), map(for_csv, names), strict=True)
        with open_atomic(listed) as file:
            csv.writer(file, lineterminator="\n").writerows([("path", "label"), *rows])
        arguments += ["--test-list", str(listed)]
    return shlex.join(arguments)
