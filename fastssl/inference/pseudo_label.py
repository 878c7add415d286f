"""The verb `label`: pseudo-labels of the unlabelled pictures, for a person to look through.

The file has the columns path, label, confidence, threshold, trusted and goes back through
`fastssl convert FOLDER OUT --labels FILE`, which reads the first two. `threshold` is the one of
the picture's class: that of the curriculum at the checkpoint where the algorithm has one, else
the algorithm's own, else 0.95. `trusted` says whether the confidence reaches it; a picture whose
label was given by the user is `given`.
"""

from __future__ import annotations

import csv
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl.algorithms.common import cpl
from fastssl.engine.build_data import make_data
from fastssl.errors import ConfigError, DataError
from fastssl.inference.prediction_files import open_out
from fastssl.inference.predictor import Predictor
from pipelines.store.store import Store, ensure_store

HEADER = ["path", "label", "confidence", "threshold", "trusted"]
FALLBACK = 0.95  # threshold for an algorithm that has none


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """What the model says of the unlabelled pictures of a store's training split."""

    store: Store
    classes: list[str]
    places: npt.NDArray[np.int64]  # in the split
    label: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    thresholds: npt.NDArray[np.float64]  # of each class

    @property
    def trusted(self) -> npt.NDArray[np.bool_]:
        """Tell which confidences reach the threshold of their class."""
        return np.asarray(self.confidence >= self.thresholds[self.label])


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
    """Write pseudo-labels and, if asked for, a contact sheet; return counts and files."""
    if not 0 <= min_confidence <= 1:
        raise ConfigError(f"min_confidence is {min_confidence}", "give a number from 0 to 1")
    model = Predictor(run, checkpoint, device)
    pseudo_labels = pseudo_label(model, ensure_store(store))
    kept = pseudo_labels.confidence >= min_confidence
    if trusted_only:
        kept &= pseudo_labels.trusted
    written = write(pseudo_labels, kept, out, given)
    if sheet is not None:
        from fastssl.inference.contact_sheet import write_sheet

        write_sheet(pseudo_labels, sheet)
    return {
        "out": str(out),
        "sheet": str(sheet) if sheet else None,
        "pictures": len(pseudo_labels.places),
        "trusted": int(pseudo_labels.trusted.sum()),
        "written": written,
        "classes": summary(pseudo_labels),
    }


def pseudo_label(model: Predictor, store: Store) -> PseudoLabels:
    """Ask the model for every unlabelled picture."""
    if store.class_names != model.classes:
        raise DataError(
            f"{store.path} has other classes than {model.run}", "give the store of this run"
        )
    places = unlabeled(model, store)
    if not len(places):
        raise DataError(
            f"{store.path} has no unlabelled picture",
            "give a store converted with --unlabeled DIR, or with --labels that name but a few",
        )
    logits = np.concatenate(list(model.store(store, "train", places))).astype(np.float64)
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = scores / scores.sum(axis=1, keepdims=True)
    return PseudoLabels(
        store=store,
        classes=model.classes,
        places=places,
        label=probability.argmax(axis=1),
        confidence=probability.max(axis=1),
        thresholds=class_thresholds(model),
    )


def unlabeled(model: Predictor, store: Store) -> npt.NDArray[np.int64]:
    """Return the pictures whose labels the run did not see.

    Of the run's own store: the unlabelled set without the labelled pictures in it. Of another:
    those without a label, or all where every one has a label.
    """
    if store.fingerprint == model.content["store"]:
        split, _ = make_data(model.resolved, store, 1)
        everything = np.union1d(split.unlabeled, split.validation)
        found: npt.NDArray[np.int64] = np.setdiff1d(everything, split.labeled)
        return found
    labels = store.labels("train")
    missing = np.flatnonzero(labels < 0)
    return missing if len(missing) else np.arange(len(labels))


def class_thresholds(model: Predictor) -> npt.NDArray[np.float64]:
    """Return the confidence at which the run's algorithm trusts a guess, for each class."""
    settings = model.resolved.settings
    if isinstance(settings, cpl.CurriculumSettings):
        found = cpl.thresholds(model.content["state"], settings)
        return np.asarray(found.double().numpy())
    level = getattr(settings, "threshold", FALLBACK)
    return np.full(len(model.classes), float(level))


def write(pseudo_labels: PseudoLabels, kept: npt.NDArray[np.bool_], out: Path, given: bool) -> int:
    """Write the lines, the surest first within each class; return how many."""
    paths = pseudo_labels.store.source_paths("train")
    order = np.lexsort((pseudo_labels.places, -pseudo_labels.confidence, pseudo_labels.label))
    rows = [
        [
            paths[pseudo_labels.places[one]],
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
        labels[pseudo_labels.places] = -1
        known = [[paths[p], pseudo_labels.classes[labels[p]]] for p in np.flatnonzero(labels >= 0)]
        rows = [[*row, "1.000000", "0.000000", "given"] for row in known] + rows
    with ExitStack() as stack:
        csv.writer(open_out(stack, out), lineterminator="\n").writerows([HEADER, *rows])
    return len(rows)


def summary(pseudo_labels: PseudoLabels) -> list[dict[str, Any]]:
    """Return one row a class."""
    rows = []
    for number, name in enumerate(pseudo_labels.classes):
        own = pseudo_labels.label == number
        rows.append(
            {
                "label": name,
                "pictures": int(own.sum()),
                "trusted": int((own & pseudo_labels.trusted).sum()),
                "threshold": round(float(pseudo_labels.thresholds[number]), 4),
                "mean confidence": round(float(pseudo_labels.confidence[own].mean()), 4)
                if own.any()
                else None,
            }
        )
    return rows
