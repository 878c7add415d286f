"""How many trusted pseudo-labels are right: an interval from images whose labels are held out.

The labels that a run was trained on say nothing about this: the model was fitted to them. The
estimate uses the validation images of the run or, if it has none, labeled test images; without
either, `cross_fit` withholds labels from further models. Validation and test images are
new to the model; what the unlabeled images have in common with them is an assumption that no
number can replace, and the text of the result names it.

Unlabeled images are not new to the model: it was trained on its own predictions for them, so it
is more confident about them than about held-out images, right or wrong. At an equal threshold the
held-out precision is therefore too good. Two estimates bound the effect: from the held-out images
that reach the same thresholds, and from the same share of held-out images, most confident first.
The second assumes an equal accuracy on both, however confident the model has become. The interval
covers both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastssl.engine.build_data import make_data
from fastssl.inference.predictor import Predictor, probabilities
from fastssl.inference.store_match import match_labels, own_store, seen_in_training
from pipelines.store.store import Store

LEVEL = 0.95  # of the interval
POOR = 0.8  # a lower end below this is warned about
NO_LABEL = "no image with a held-out label: the run has no validation and the store no test set"
NONE_TRUSTED = "no image is trusted"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Images with a label that the model was not trained on."""

    split: str  # of the store
    indices: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]  # indices into the model's classes
    name: str  # "validation" or "test"
    chose: bool  # whether the checkpoint was chosen by the error on these images


@dataclass(frozen=True, slots=True)
class Precision:
    """The share of trusted pseudo-labels that are right, as an interval."""

    low: float
    high: float
    held_out: int  # images with a held-out label
    trusted: int  # of these, how many reach the thresholds
    right: int  # of those, how many are predicted correctly
    accuracy: float  # on all held-out images, trusted or not
    name: str  # of the held-out images
    models: int = 1  # more if the labels were withheld from one model each, see `cross_fit`

    def __str__(self) -> str:
        of, like = f"of {self.held_out:,} held-out {self.name} images", f"{self.name} images"
        if self.models > 1:
            of = f"cross-fitted over {self.models} models on {self.held_out:,} labels, of which"
            like = "labeled ones; the run learned from more labels than these models"
        return (
            f"{100 * self.low:.1f} % to {100 * self.high:.1f} % ({of} {self.trusted:,} reach the "
            f"thresholds, {self.right:,} of them right; it holds if the unlabeled images are like "
            f"the {like})"
        )


def held_out_images(model: Predictor, store: Store) -> HeldOut | None:
    """Return labeled images of a store that are new to the model, or None if there are none."""
    own = model.trained_on(store)
    if own:
        validation = make_data(model.resolved, store, 1)[0].validation
        if len(validation) and not store.manifest.pseudo_labels:
            labels = match_labels(model, store, "train")[validation]
            return HeldOut("train", validation, labels, "validation", model.which == "best")
    if "test" not in store.splits:
        return None
    labels = match_labels(model, store, "test")
    usable = labels >= 0
    trained_on = None if own else own_store(model)
    if trained_on is not None:
        usable &= ~seen_in_training(trained_on, store, "test")
    indices = np.flatnonzero(usable)
    return HeldOut("test", indices, labels[indices], "test", own and model.which == "best")


def estimate_precision(
    model: Predictor,
    store: Store,
    thresholds: npt.NDArray[np.float64],  # [C]
    trusted: npt.NDArray[np.bool_],  # [n] which of the pseudo-labels reach them
) -> Precision | str:
    """Return the interval, or the reason why it cannot be estimated."""
    if not model.trained_on(store) and own_store(model) is None:
        return "the store of the run is gone, so any of the test images may have been trained on"
    held = held_out_images(model, store)
    if held is None or not len(held.indices):
        return NO_LABEL
    if not trusted.any():
        return NONE_TRUSTED
    logits = np.concatenate(list(model.store(store, held.split, held.indices)))
    probability = probabilities(logits)
    predicted, confidence = probability.argmax(axis=1), probability.max(axis=1)
    right = predicted == held.labels
    margin = confidence - thresholds[predicted]
    most_confident = np.argsort(-margin, kind="stable")[: round(trusted.mean() * len(margin))]
    passes = margin >= 0
    chosen_among = 1.0
    if held.chose:
        # The checkpoint is the best of many on these very images. A narrower error rate for each
        # of them (Bonferroni) keeps the stated level for the best.
        config = model.resolved.config
        chosen_among += config.steps / min(config.eval_every, config.eval_every_late)
    intervals = [
        interval(int(part.sum()), len(part), int(trusted.sum()), (1 - LEVEL) / chosen_among)
        for part in (right[passes], right[most_confident])
        if len(part)
    ]
    if not passes.any():
        return f"none of the {len(margin):,} held-out {held.name} images reaches the thresholds"
    return Precision(
        low=min(low for low, _ in intervals),
        high=max(high for _, high in intervals),
        held_out=len(margin),
        trusted=int(passes.sum()),
        right=int(right[passes].sum()),
        accuracy=float(right.mean()),
        name=held.name,
    )


def interval(right: int, images: int, labels: int, error_rate: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval for the share of right ones among `labels` others.

    Both are samples: the difference of their shares has the variance of one sample of
    1 / (1 / images + 1 / labels).
    """
    from scipy.stats import beta

    size = images * labels / (images + labels)
    hits = right / images * size
    low = beta.ppf(error_rate / 2, hits, size - hits + 1) if right else 0.0
    high = beta.ppf(1 - error_rate / 2, hits + 1, size - hits) if right < images else 1.0
    return float(low), float(high)
