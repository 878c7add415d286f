"""Pseudo-labels: what the model of a run predicts for the unlabeled images of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl.engine.build_data import make_data
from fastssl.errors import DataError
from fastssl.inference.predictor import Predictor
from fastssl.inference.store_match import match_labels
from pipelines.store.store import Store

FALLBACK = 0.95  # threshold for an algorithm that has none


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """Predictions for the unlabeled images of a store's training split."""

    store: Store
    classes: list[str]
    indices: npt.NDArray[np.int64]  # [n] into the split
    label: npt.NDArray[np.int64]  # [n]
    confidence: npt.NDArray[np.float64]  # [n]
    thresholds: npt.NDArray[np.float64]  # [C]

    @property
    def trusted(self) -> npt.NDArray[np.bool_]:
        """Return for each image whether its confidence reaches the threshold of its class, [n]."""
        return np.asarray(self.confidence >= self.thresholds[self.label])

    def class_rows(self) -> list[dict[str, Any]]:
        """Return one row per class: its images, how many are trusted, and their confidence."""
        rows = []
        for number, name in enumerate(self.classes):
            own = self.label == number
            mean = round(float(self.confidence[own].mean()), 4) if own.any() else None
            rows.append(
                {
                    "label": name,
                    "images": int(own.sum()),
                    "trusted": int((own & self.trusted).sum()),
                    "threshold": round(float(self.thresholds[number]), 4),
                    "mean confidence": mean,
                }
            )
        return rows


def pseudo_label(model: Predictor, store: Store) -> PseudoLabels:
    """Return the model's predictions for every unlabeled image of a store."""
    match_labels(model, store, "train")  # refuses classes that the model does not know
    indices = unlabeled(model, store)
    if not len(indices):
        raise DataError(
            f"{store.path} has no unlabeled image",
            "give a store converted with --unlabeled DIR, or with --labels for a part of it",
        )
    logits = np.concatenate(list(model.store(store, "train", indices))).astype(np.float64)
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = scores / scores.sum(axis=1, keepdims=True)
    return PseudoLabels(
        store=store,
        classes=model.classes,
        indices=indices,
        label=probability.argmax(axis=1),
        confidence=probability.max(axis=1),
        thresholds=class_thresholds(model),
    )


def unlabeled(model: Predictor, store: Store) -> npt.NDArray[np.int64]:
    """Return the indices of the images whose labels the run did not see.

    In the run's own store these are the unlabeled and the validation images that are not labeled.
    In another store they are the images without a label, or all if every image has one.
    """
    if model.trained_on(store):
        split, _ = make_data(model.resolved, store, 1)
        everything = np.union1d(split.unlabeled, split.validation)
        found: npt.NDArray[np.int64] = np.setdiff1d(everything, split.labeled)
        return found
    labels = store.labels("train")
    missing = np.flatnonzero(labels < 0)
    return missing if len(missing) else np.arange(len(labels))


def class_thresholds(model: Predictor) -> npt.NDArray[np.float64]:
    """Return the confidence at which the run's algorithm trusts a guess, for each class."""
    count, resolved = len(model.classes), model.resolved
    if resolved.algorithm.thresholds is None:
        return np.full(count, FALLBACK)
    found = resolved.algorithm.thresholds(model.content["state"], resolved.settings, count)
    return np.asarray(found.double().numpy())
