"""Which images a step sees: a pure function of (seed, step), computed without a list of all steps.

There are two streams. Unlabeled: shuffled passes without replacement; the end of a pass that is
too short for a batch is dropped, so no image occurs twice in one global batch. Labeled: shuffled
passes that follow each other without a gap, so a batch may be larger than the set. The first steps
may have labeled images alone; which unlabeled ones a later step uses does not depend on it.
"""

import numpy as np
import numpy.typing as npt

from pipelines.errors import ConfigError
from pipelines.sampling.rng import permutation

Positions = npt.NDArray[np.int64]


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
    """The shuffled passes over one set; only the last one is kept (4 bytes per image)."""

    def __init__(self, seed: int, purpose: str, size: int) -> None:
        self.seed = seed
        self.purpose = purpose
        self.size = size
        self._last: tuple[int, npt.NDArray[np.uint32]] | None = None

    def __getitem__(self, number: int) -> npt.NDArray[np.uint32]:
        """Return the shuffled set of pass `number`."""
        # Read once: the loader's thread and the main thread may both be here, and the attribute
        # may be replaced between the test and the return.
        last = self._last
        if last is None or last[0] != number:
            last = (number, permutation(self.seed, self.purpose, number, self.size))
            self._last = last
        return last[1]


class Order:
    """The positions in the labeled and in the unlabeled set that each step uses."""

    def __init__(
        self,
        seed: int,
        labeled: int,
        unlabeled: int,
        batch: int,
        unlabeled_batch: int,
        labeled_only: int = 0,  # first steps without unlabeled images
    ) -> None:
        if batch and not labeled:
            raise ConfigError(
                "no image of the training set is labeled",
                "type labels=40 or labels=all, and check the labels in the store's index.csv",
            )
        if 0 < unlabeled < unlabeled_batch:
            raise ConfigError(
                f"one step needs {unlabeled_batch:,} different unlabeled images (ratio times "
                f"batch), but there are only {unlabeled:,}",
                "type a smaller ratio or batch",
            )
        self.batch = batch
        self.unlabeled_batch = unlabeled_batch if unlabeled else 0
        self.labeled_only = labeled_only
        self._labeled = Passes(seed, "labeled", labeled)
        self._unlabeled = Passes(seed, "unlabel", unlabeled)

    def labeled(self, step: int) -> Positions:
        """Return the positions [batch] in the labeled set that `step` uses."""
        positions = np.empty(self.batch, dtype=np.int64)
        done = 0
        while done < self.batch:  # a batch may extend over several passes
            number, start = divmod(step * self.batch + done, self._labeled.size)
            part = self._labeled[number][start : start + self.batch - done]
            positions[done : done + len(part)] = part
            done += len(part)
        return positions

    def unlabeled(self, step: int) -> Positions:
        """Return the positions [unlabeled_batch or 0] in the unlabeled set, without repeats."""
        if not self.unlabeled_batch or step < self.labeled_only:
            return np.empty(0, dtype=np.int64)
        number, batch = divmod(step, self._unlabeled.size // self.unlabeled_batch)
        start = batch * self.unlabeled_batch
        return self._unlabeled[number][start : start + self.unlabeled_batch].astype(np.int64)
