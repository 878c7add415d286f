"""Pseudo-labels: what the model of a run predicts for the unlabeled images of a store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastssl.algorithms.common import cpl
from fastssl.engine.build_data import make_data
from fastssl.errors import DataError
from fastssl.inference.predictor import Predictor
from pipelines.store.store import Store

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
