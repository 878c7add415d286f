"""The figures of one run and of one cell: recomputed from metrics.jsonl, not copied."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastssl.engine.progress import LAST
from fastssl.report.load import Run, number, numbers

AT_BEST = ("top5_error", "precision", "recall", "f1", "auc", "ece")


@dataclass(frozen=True, slots=True)
class Stat:
    """A mean over seeds; `std` is the sample standard deviation, None for one value."""

    mean: float
    std: float | None
    n: int


def stat(values: Iterable[float | None]) -> Stat | None:
    """Return mean and sample standard deviation of the values that are there."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    std = statistics.stdev(found) if len(found) > 1 else None
    return Stat(statistics.fmean(found), std, len(found))


def errors(run: Run) -> list[tuple[int, float]]:
    """Return (step, test error) of every evaluation."""
    pairs = [(line["step"], number(line.get("error"))) for line in run.evals]
    return [(step, error) for step, error in pairs if error is not None]


def best_line(run: Run) -> dict[str, Any] | None:
    """Return the evaluation chosen as best: by validation error where there is one."""
    best, lowest = None, math.inf
    for line in run.evals:
        error = number(line.get("error"))
        if error is None:
            continue
        choice = number(line.get("validation_error"))
        choice = error if choice is None else choice
        if choice < lowest:
            best, lowest = line, choice
    return best


def median_error(run: Run) -> float | None:
    """Return the median error of the last 20 evaluations."""
    found = [error for _, error in errors(run)]
    return statistics.median(found[-LAST:]) if found else None


def last_error(run: Run) -> float | None:
    """Return the error of the last evaluation."""
    found = errors(run)
    return found[-1][1] if found else None


def seconds(run: Run) -> float | None:
    """Return the time a run took."""
    lines = [*run.evals[-1:], *run.recent[-1:]]
    times = [number(line.get("seconds")) for line in lines]
    return max((time for time in times if time is not None), default=None)


def step_seconds(run: Run) -> float | None:
    """Return the time of a step: the median over the last stretches between two lines.

    The first steps, which compile, and the stretches in which a run evaluated weigh nothing in a
    median; where there are fewer than three stretches the mean of the summary stands in.
    """
    evaluated = {line["step"] for line in run.evals}
    found: list[float] = []
    for before, after in zip(run.recent, run.recent[1:], strict=False):
        begun, ended = number(before.get("seconds")), number(after.get("seconds"))
        steps = after["step"] - before["step"]
        if begun is not None and ended is not None and steps and before["step"] not in evaluated:
            found.append((ended - begun) / float(steps))
    if len(found) >= 3:
        return statistics.median(found)
    return number(run.summary.get("seconds_per_step"))


def reach(run: Run, accuracy: float) -> tuple[int, float | None] | None:
    """Return step and seconds of the first evaluation with at least this accuracy (percent)."""
    for line in run.evals:
        error = number(line.get("error"))
        if error is not None and 100 - error >= accuracy:
            return line["step"], number(line.get("seconds"))
    return None


def class_accuracy(run: Run) -> list[float | None]:
    """Return the accuracy of every class at the best evaluation."""
    line = best_line(run)
    return numbers(line.get("class_accuracy")) if line else []


def figures(run: Run) -> dict[str, Any]:
    """Return every figure of a run."""
    line = best_line(run) or {}
    last = run.recent[-1] if run.recent else {}
    rate = number(run.summary.get("images_per_s"))
    wait = number(run.summary.get("data_wait"))
    return {
        "best_error": number(line.get("error")),
        "best_step": line.get("step"),
        "median_error": median_error(run),
        "last_error": last_error(run),
        **{name: number(line.get(name)) for name in AT_BEST},
        "steps": run.steps,
        "evaluations": len(errors(run)),
        "seconds": seconds(run),
        "seconds_per_step": number(run.summary.get("seconds_per_step")),
        "step_seconds": step_seconds(run),
        "images_per_s": number(last.get("speed/images_per_s")) if rate is None else rate,
        "data_wait": number(last.get("speed/data_wait")) if wait is None else wait,
    }
