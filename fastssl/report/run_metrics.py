"""The metrics of one run, computed from its metrics.jsonl, and their mean over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastssl.engine.progress import LAST
from fastssl.report.load import Run
from fastssl.report.records import MetricsLine

AT_BEST = ("top5_error", "precision", "recall", "f1", "auc", "ece")


@dataclass(frozen=True, slots=True)
class Stat:
    """A mean over seeds; `std` is the sample standard deviation, None for one value."""

    mean: float
    std: float | None
    n: int


def stat(values: Iterable[float | None]) -> Stat | None:
    """Return mean and sample standard deviation of the values that are not None."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    std = statistics.stdev(found) if len(found) > 1 else None
    return Stat(statistics.fmean(found), std, len(found))


def best_line(run: Run) -> MetricsLine | None:
    """Return the best evaluation: by validation error if there is one, else by test error."""
    best, lowest = None, math.inf
    for line in run.evals:
        choice = line.error if line.validation_error is None else line.validation_error
        if line.error is not None and choice is not None and choice < lowest:
            best, lowest = line, choice
    return best


def step_seconds(run: Run) -> float | None:
    """Return the time of a step: the median over the intervals between the last training lines.

    A median ignores the first steps, which compile. Intervals with an evaluation are left out.
    With fewer than three intervals it is the mean from the summary.
    """
    evaluated = {line.step for line in run.evals}
    found = [
        (after.seconds - before.seconds) / (after.step - before.step)
        for before, after in zip(run.recent, run.recent[1:], strict=False)
        if before.seconds is not None and after.seconds is not None
        if before.step not in evaluated
    ]
    return statistics.median(found) if len(found) >= 3 else run.summary.seconds_per_step


def run_metrics(run: Run) -> dict[str, Any]:
    """Return every metric of a run by its name in CSV and JSON."""
    line = best_line(run)
    errors = [line.error for line in run.evals if line.error is not None]
    last = run.recent[-1] if run.recent else None
    ends = [found.seconds for found in (*run.evals[-1:], *run.recent[-1:])]
    rate, wait = run.summary.images_per_s, run.summary.data_wait
    return {
        "best_error": line and line.error,
        "best_step": line and line.step,
        "median_error": statistics.median(errors[-LAST:]) if errors else None,
        "last_error": errors[-1] if errors else None,
        **{name: line and getattr(line, name) for name in AT_BEST},
        "steps": run.steps,
        "evaluations": len(errors),
        "seconds": max((time for time in ends if time is not None), default=None),
        "seconds_per_step": run.summary.seconds_per_step,
        "step_seconds": step_seconds(run),
        "images_per_s": last.images_per_s if rate is None and last else rate,
        "data_wait": last.data_wait if wait is None and last else wait,
    }
