"""The progress of a run: step, best error, history and time; needs no torch.

It is part of every checkpoint.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TypedDict

from fastssl.config.schema import RunConfig

LAST = 20  # evaluations in the median that the paper reports beside the best


class EvaluationMetrics(TypedDict, total=False):
    """The metrics of one evaluation; errors are in percent."""

    error: float
    top5_error: float  # only with more than five classes
    validation_error: float  # only if images are held out
    loss: float
    precision: float  # macro averages: 0/0 counts as 0
    recall: float
    f1: float
    auc: float | None  # None if it is not defined, or with more than 100 classes
    ece: float
    class_accuracy: list[float]
    confusion: list[list[int]]  # [true class][predicted class], only at the end of a run
    seconds: float  # since the start of the run


@dataclass(slots=True)
class TrainingProgress:
    """Counters and errors so far; the fields are keys of a checkpoint."""

    step: int = 0
    best_error: float = float("inf")  # on the test set, at the step chosen as best
    best_step: int = 0
    best_choice: float = float("inf")  # what it was chosen by: validation or test error
    errors: list[float] = field(default_factory=list)  # test error of every evaluation
    train_seconds: float = 0.0  # spent in training steps
    seconds: float = 0.0  # all of the run's processes, evaluations and checkpoints included
    waited: float = 0.0  # seconds of training spent waiting for the loader
    images: int = 0  # labeled and unlabeled, over all ranks

    def add_evaluation(self, metrics: EvaluationMetrics) -> bool:
        """Record an evaluation after `step` steps; return True if it is the best so far."""
        self.errors.append(metrics["error"])
        choice = metrics.get("validation_error", metrics["error"])
        if choice >= self.best_choice:
            return False
        self.best_choice, self.best_error, self.best_step = choice, metrics["error"], self.step
        return True

    @property
    def median_error(self) -> float | None:
        """The median error of the last 20 evaluations."""
        return statistics.median(self.errors[-LAST:]) if self.errors else None

    @property
    def images_per_s(self) -> float:
        """Images of both streams per second of training, without evaluations."""
        return self.images / self.train_seconds if self.train_seconds else 0.0

    @property
    def data_wait(self) -> float:
        """Share of the training time spent waiting for data."""
        return self.waited / self.train_seconds if self.train_seconds else 0.0


def evaluates(config: RunConfig, step: int) -> bool:
    """Return whether a run evaluates after `step` steps: more often in the last fifth."""
    late = step > 0.8 * config.steps
    every = config.eval_every_late if late else config.eval_every
    return step % every == 0 or step == config.steps


def logs(config: RunConfig, step: int) -> bool:
    """Return whether a line of metrics is written after `step` steps."""
    return step % config.log_every == 0 or step == config.steps


def saves(config: RunConfig, step: int) -> bool:
    """Return whether a checkpoint is written after `step` steps."""
    return step % config.checkpoint_every == 0 or step == config.steps
