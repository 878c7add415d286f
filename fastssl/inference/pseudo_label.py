"""Pseudo-labels: what the model of a run predicts for the unlabeled images of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl.engine.build_data import make_data
from fastssl.errors import ConfigError, DataError
from fastssl.inference.predictor import Predictor, probabilities
from fastssl.inference.store_match import match_labels
from pipelines.store.store import Store

FLOOR = 0.95  # lowest confidence that is trusted, unless the user chooses another


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


def pseudo_label(
    model: Predictor,
    store: Store,
    floor: float = FLOOR,
    among: npt.NDArray[np.int64] | None = None,
) -> PseudoLabels:
    """Return the model's predictions for the unlabeled images of a store, or those `among` some."""
    thresholds = class_thresholds(model, floor)
    match_labels(model, store, "train")  # refuses classes that the model does not know
    indices = unlabeled(model, store)
    indices = indices if among is None else np.intersect1d(indices, among)
    if not len(indices):
        raise DataError(
            f"{store.path} has no unlabeled image",
            "give a store converted with --unlabeled DIR, or with --labels for a part of it",
        )
    probability = probabilities(np.concatenate(list(model.store(store, "train", indices))))
    return PseudoLabels(
        store=store,
        classes=model.classes,
        indices=indices,
        label=probability.argmax(axis=1),
        confidence=probability.max(axis=1),
        thresholds=thresholds,
    )


def unlabeled(model: Predictor, store: Store) -> npt.NDArray[np.int64]:
    """Return the indices of the images whose labels the run did not see.

    In the run's own store these are the unlabeled images of the run; validation images have a
    label. In another store they are the images without a label, or all if every image has one.
    """
    if model.trained_on(store):
        split, _ = make_data(model.resolved, store, 1)
        found: npt.NDArray[np.int64] = np.setdiff1d(split.unlabeled, split.labeled)
        return found
    labels = store.labels("train")
    missing = np.flatnonzero(labels < 0)
    return missing if len(missing) else np.arange(len(labels))


def class_thresholds(model: Predictor, floor: float) -> npt.NDArray[np.float64]:
    """Return the confidence from which on a pseudo-label is trusted, for each class.

    It is the current threshold of the run's algorithm, but not less than the floor: early in a
    training, learned thresholds may be near 0.
    """
    if not 0 <= floor <= 1:
        raise ConfigError(f"the floor is {floor}", "give a number from 0 to 1")
    count, resolved = len(model.classes), model.resolved
    if resolved.algorithm.thresholds is not None:
        try:
            found = resolved.algorithm.thresholds(model.content["state"], resolved.settings, count)
            return np.asarray(np.maximum(found.double().numpy().reshape(count), floor))
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise DataError(
                f"the checkpoint of {model.run} has no thresholds of {resolved.algorithm.name} for "
                f"{count} classes",
                "use a checkpoint of the same run",
            ) from error
    if not floor:
        raise ConfigError(
            f"{resolved.algorithm.name} has no thresholds, so a floor of 0 would trust everything",
            f"give a floor above 0, for example {FLOOR}",
        )
    return np.full(count, floor)
