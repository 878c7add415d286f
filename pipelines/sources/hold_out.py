"""Choosing a test set where the user has none, and what to report about the one there is."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from pipelines.sources import Labels
from pipelines.text import for_terminal, listed

FRACTION = 0.1
FEW, FEW_PER_CLASS = 50, 10  # test images; fewer are warned about
SHOWN = 5  # classes named in a warning


def held_out(labels: Labels, keys: Sequence[str], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Mark the test images: of each class at most `share`, chosen by a hash of their keys.

    An image that is added later changes at most one other: a folder that is converted again tests
    on the same images, so that a model that was trained before has not seen them.
    """
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels[labels >= 0]) if share else ():
        members = np.flatnonzero(labels == label).tolist()
        count = int(share * len(members) + 1e-9)  # 0.1 * 30 is less than 3 in binary
        chosen[sorted(members, key=lambda index: _hash(keys[index], seed))[:count]] = True
    return chosen


def _hash(key: str, seed: int) -> bytes:
    return blake2b(f"{seed}:{key}".encode(errors="surrogateescape"), digest_size=8).digest()


def describe(
    names: Sequence[str], train: Labels, test: Labels, held: float | None
) -> tuple[list[str], list[str]]:
    """Return notes and warnings on the images of each split; `held` is the share held out."""
    if not names:
        return [f"{len(train):,} images without a label; `fastssl choose` picks some to label"], []
    labeled, tested = (np.bincount(part[part >= 0], minlength=len(names)) for part in (train, test))
    notes = [
        f"{len(train):,} training images, {labeled.sum():,} of them labeled ({_each(labeled)}); "
        f"{len(test):,} test images ({_each(tested)})"
    ]
    if held and len(test):
        notes.append(
            f"up to {held:.0%} of every class is held out to test on; change it by --test DIR, "
            "--test-list FILE or --test-fraction"
        )
    warnings = []
    given = "test images by --test DIR or --test-list FILE, or a larger --test-fraction"
    if not len(test):
        warnings.append(f"no test images: nothing will show how good a model is; give {given}")
    elif tested.sum() < FEW or tested.min() < FEW_PER_CLASS:
        fewest = for_terminal(names[int(tested.argmin())])
        warnings.append(
            f"{len(test):,} test images, {tested.min()} of the class {fewest}, are too few for a "
            f"test error that can be trusted; give more {given}"
        )
    for what, chosen in (
        ("without a labeled training image", labeled == 0),
        ("with one labeled image", labeled + tested == 1),
    ):
        found = [names[index] for index in np.flatnonzero(chosen).tolist()]
        if found:
            warnings.append(f"classes {what}: {listed(found, SHOWN)}")
    return notes, warnings


def _each(counts: npt.NDArray[np.int64]) -> str:
    low, high = counts.min(), counts.max()
    return f"{low} to {high} per class" if low < high else f"{low} per class"
