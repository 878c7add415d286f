"""Comparisons: our results with the paper's, and every algorithm with FixMatch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from fastssl.config.schema import keys_that_may_differ
from fastssl.report import published
from fastssl.report.cells import Cell
from fastssl.report.published import PublishedResult
from fastssl.report.run_metrics import Stat, stat
from fastssl.sweep.grid import format_value

FIXMATCH = "fixmatch"
LEVELS = (30, 50, 70, 80, 90, 95, 98)  # accuracies; a table shows the highest three reached
HIGHER_IS_BETTER = ("precision", "recall", "f1", "auc")


@dataclass(frozen=True, slots=True)
class Level:
    """An accuracy to reach; `steps` is the length of FixMatch's runs if it is their final one."""

    accuracy: float
    text: str
    steps: float | None = None


def published_result(cell: Cell, metric: str) -> PublishedResult | None:
    """Return what was published for a cell, or None."""
    return published.find(metric, cell.algorithm, cell.data, cell.labels, cell.unusual)


def differs(ours: Stat, paper: PublishedResult, metric: str) -> str:
    """Return "better" or "worse" if the difference exceeds two standard deviations, else "".

    The deviation is the published one if there is one, else ours. Without either it returns "".
    """
    std = paper.std if paper.std is not None else ours.std
    if std is None or abs(ours.mean - paper.mean) <= 2 * std:
        return ""
    higher = ours.mean > paper.mean
    return "better" if higher == (metric in HIGHER_IS_BETTER) else "worse"


def baseline(cells: list[Cell]) -> Cell | None:
    """Return FixMatch among the cells of a task: with the usual settings, or the only one.

    Settings are usual among all tasks of a report, and one task may need others.
    """
    found = [cell for cell in cells if cell.algorithm == FIXMATCH and cell.used]
    usual = [cell for cell in found if not cell.settings]
    return next(iter(usual), found[0] if len(found) == 1 else None)


def levels(cells: list[Cell]) -> list[Level]:
    """Return FixMatch's final accuracy, then the round accuracies that any cell reached."""
    found = []
    base = baseline(cells)
    final = base.stat("last_error") if base else None
    if base and final:
        length = statistics.fmean(run.steps for run in base.used)
        accuracy = 100 - final.mean
        found.append(Level(accuracy, f"{accuracy:.2f} % (FixMatch's final)", length))
    lines = [line for cell in cells for run in cell.used for line in run.evals]
    highest = max((line.accuracy for line in lines if line.accuracy is not None), default=0)
    reached = [level for level in LEVELS if level <= highest]
    return found + [Level(level, f"{level} %") for level in reached[-3:]]


def reached(cell: Cell, accuracy: float) -> tuple[Stat | None, Stat | None]:
    """Return the steps and seconds until an accuracy, over the seeds that reach it."""
    reaching = [
        [line for line in run.evals if line.accuracy is not None and line.accuracy >= accuracy]
        for run in cell.used
    ]
    hits = [lines[0] for lines in reaching if lines]
    return stat(line.step for line in hits), stat(line.seconds for line in hits)


def reduction(cell: Cell | None, base: Cell | None) -> float | None:
    """Return by how many percent the error of a cell is below the error of the base."""
    ours = cell.stat("best_error") if cell else None
    theirs = base.stat("best_error") if base else None
    if ours is None or theirs is None or theirs.mean == 0:
        return None
    return 100 * (theirs.mean - ours.mean) / theirs.mean


def unlike_paper(cell: Cell, defaults: dict[str, object]) -> str:
    """Return the settings in which a cell with a published result differs from the paper's."""
    if published_result(cell, "best_error") is None or not cell.runs:
        return ""
    config = cell.runs[0].config
    return ", ".join(
        f"{key} {format_value(config[key])} instead of {format_value(value)}"
        for key, value in defaults.items()
        # Settings under `algo.` have already chosen the published result.
        if not key.startswith("algo.") and key not in keys_that_may_differ("paper")
        # None is the model's own BatchNorm momentum in runs of 0.1.0, which is the paper's.
        if key in config and config[key] not in (value, None)
    )
