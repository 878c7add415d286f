"""Which images a step sees: a pure function of (seed, step), with no list of the run.

Two streams. Unlabelled: shuffled passes without replacement; what is left at the end of a pass
and too little for a batch is dropped, so no image stands twice in one global batch. Labelled:
shuffled passes that run on without a seam, so a batch may be larger than the set.
"""

import numpy as np
import numpy.typing as npt

from pipelines.errors import ConfigError
from pipelines.sampling.rng import permutation

Places = npt.NDArray[np.int64]


def check_divisible(batch: int, ranks: int, parts: int = 1) -> None:
    """Raise ConfigError unless every rank gets the same number of images in each of its parts."""
    shares = ranks * parts
    if batch % shares:
        each = f" of {parts} parts" if parts > 1 else ""
        raise ConfigError(
            f"batch {batch} does not divide by {ranks} ranks{each}",
            f"type batch={max(1, batch // shares) * shares}, or start another number of ranks",
        )


class Passes:
    """The shuffled passes over one set; it keeps the last one only (4 bytes an image)."""

    def __init__(self, seed: int, purpose: str, size: int) -> None:
        self.seed = seed
        self.purpose = purpose
        self.size = size
        self._last: tuple[int, npt.NDArray[np.uint32]] | None = None

    def __getitem__(self, number: int) -> npt.NDArray[np.uint32]:
        """Return the shuffled set of pass `number`."""
        last = self._last  # read once: the loader's thread and a test may both be here
        if last is None or last[0] != number:
            last = (number, permutation(self.seed, self.purpose, number, self.size))
            self._last = last
        return last[1]


class Order:
    """The places, in the labelled and in the unlabelled set, that every step takes."""

    def __init__(
        self, seed: int, labeled: int, unlabeled: int, batch: int, unlabeled_batch: int
    ) -> None:
        if batch and not labeled:
            raise ConfigError(
                "no image of the training set is labelled",
                "ask for labels (labels=40, labels=all) and look at the store's index.csv",
            )
        if 0 < unlabeled < unlabeled_batch:
            raise ConfigError(
                f"one step takes {unlabeled_batch:,} different unlabelled images (ratio times "
                f"batch), but there are only {unlabeled:,}",
                "make ratio or batch smaller",
            )
        self.batch = batch
        self.unlabeled_batch = unlabeled_batch if unlabeled else 0
        self._labeled = Passes(seed, "labeled", labeled)
        self._unlabeled = Passes(seed, "unlabel", unlabeled)

    def labeled(self, step: int) -> Places:
        """Return the places in the labelled set that `step` takes."""
        places = np.empty(self.batch, dtype=np.int64)
        done = 0
        while done < self.batch:
            number, start = divmod(step * self.batch + done, self._labeled.size)
            part = self._labeled[number][start : start + self.batch - done]
            places[done : done + len(part)] = part
            done += len(part)
        return places

    def unlabeled(self, step: int) -> Places:
        """Return the places in the unlabelled set that `step` takes, no one twice."""
        if not self.unlabeled_batch:
            return np.empty(0, dtype=np.int64)
        number, place = divmod(step, self._unlabeled.size // self.unlabeled_batch)
        start = place * self.unlabeled_batch
        return self._unlabeled[number][start : start + self.unlabeled_batch].astype(np.int64)
