"""Choosing a test set where the user has none: a share of every class, by a seed."""

import numpy as np
import numpy.typing as npt

from pipelines.sources import Labels

FRACTION = 0.1


def fraction(wanted: float | None) -> float:
    """Return the share to hold out: a tenth by default."""
    return FRACTION if wanted is None else wanted


def held_out(labels: Labels, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Mark the test images: `share` of each class, at least one where a class has two."""
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels[labels >= 0]) if share else ():
        members = np.flatnonzero(labels == label)
        count = max(round(share * len(members)), 1) if len(members) > 1 else 0
        count = min(count, len(members) - 1)
        random = np.random.default_rng([seed, int(label)])
        chosen[random.permutation(members)[:count]] = True
    return chosen


def note(share: float) -> str:
    """Return the note that images were held out."""
    return (
        f"{share:.0%} of every class is held out to test on; "
        "change it by --test DIR or --test-fraction"
    )
