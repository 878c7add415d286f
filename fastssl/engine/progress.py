"""What a run has behind it: step, best, history and time; part of every checkpoint."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from fastssl.config.schema import RunConfig

LAST = 20  # evaluations in the median that the paper reports beside the best


@dataclass(slots=True)
class TrainingProgress:
    """The way so far."""

    step: int = 0
    best_error: float = float("inf")  # on the test set, at the step chosen as best
    best_step: int = 0
    best_choice: float = float("inf")  # what it was chosen by: validation or test error
    errors: list[float] = field(default_factory=list)  # test error of every evaluation
    train_seconds: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    images: int = 0

    def note(self, figures: dict[str, Any]) -> bool:
        """Take an evaluation in; return whether it is the best so far."""
        self.errors.append(figures["error"])
        choice = figures.get("validation_error", figures["error"])
        if choice >= self.best_choice:
            return False
        self.best_choice, self.best_error, self.best_step = choice, figures["error"], self.step
        return True

    @property
    def median_error(self) -> float | None:
        """The median error of the last 20 evaluations."""
        return statistics.median(self.errors[-LAST:]) if self.errors else None

    @property
    def images_per_s(self) -> float:
        """Images of both streams a second of training, evaluations aside."""
        return self.images / self.train_seconds if self.train_seconds else 0.0

    @property
    def data_wait(self) -> float:
        """Share of the training time spent waiting for data."""
        return self.waited / self.train_seconds if self.train_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return asdict(self)


def evaluates(config: RunConfig, step: int) -> bool:
    """Tell whether a run evaluates after `step` steps: more often in the last fifth."""
    late = step > 0.8 * config.steps
    every = config.eval_every_late if late else config.eval_every
    return step % every == 0 or step == config.steps


def logs(config: RunConfig, step: int) -> bool:
    """Tell whether a line of metrics is written after `step` steps."""
    return step % config.log_every == 0 or step == config.steps


def saves(config: RunConfig, step: int) -> bool:
    """Tell whether a checkpoint is written after `step` steps."""
    return step % config.checkpoint_every == 0 or step == config.steps
