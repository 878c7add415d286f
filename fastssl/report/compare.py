"""Ours against the paper's, and every algorithm against FixMatch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from fastssl.config.schema import keys_that_may_differ
from fastssl.report import published
from fastssl.report.aggregation import Stat, errors, last_error, reach
from fastssl.report.cells import Cell
from fastssl.report.published import Figure
from fastssl.sweep.grid import format_value

FIXMATCH = "fixmatch"
ROUND = (30, 50, 70, 80, 90, 95, 98)  # accuracies to reach, of which the highest three are told
HIGHER = ("precision", "recall", "f1", "auc")  # figures of which more is better
HARMLESS = keys_that_may_differ("paper")  # not named in a comparison with the paper


@dataclass(frozen=True, slots=True)
class Level:
    """An accuracy to reach; `steps` is the length of FixMatch's runs where it is its final one."""

    accuracy: float
    text: str
    steps: float | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """When a cell reached an accuracy, averaged over the `n` seeds that did."""

    steps: float
    seconds: float | None
    n: int


def differs(ours: Stat, paper: Figure, metric: str) -> str:
    """Return "better" or "worse" where the difference exceeds two standard deviations.

    Of the published ± where there is one, else of ours; without either nothing is claimed.
    """
    std = paper.std if paper.std is not None else ours.std
    if std is None or abs(ours.mean - paper.mean) <= 2 * std:
        return ""
    higher = ours.mean > paper.mean
    return "better" if higher == (metric in HIGHER) else "worse"


def final_accuracy(cell: Cell) -> float | None:
    """Return the mean accuracy of the last evaluations."""
    found = cell.mean_of(last_error)
    return 100 - found.mean if found else None


def levels(cells: list[Cell]) -> list[Level]:
    """Return the accuracies of interest: FixMatch's final one, then round ones that are reached."""
    found = []
    base = next((cell for cell in cells if cell.name == FIXMATCH), None)
    final = final_accuracy(base) if base else None
    if base and final is not None:
        length = statistics.fmean(run.steps for run in base.used)
        found.append(Level(final, f"{final:.2f} % (FixMatch's final)", length))
    highest = max(
        (100 - error for cell in cells for run in cell.used for _, error in errors(run)), default=0
    )
    met = [level for level in ROUND if level <= highest]
    return found + [Level(level, f"{level} %") for level in met[-3:]]


def reached(cell: Cell, accuracy: float) -> Reached | None:
    """Return when a cell reaches an accuracy, or None where no seed does."""
    hits = [hit for run in cell.used if (hit := reach(run, accuracy))]
    if not hits:
        return None
    times = [seconds for _, seconds in hits if seconds is not None]
    steps = statistics.fmean(step for step, _ in hits)
    return Reached(steps, statistics.fmean(times) if times else None, len(hits))


def reduction(cell: Cell | None, base: Cell | None) -> float | None:
    """Return the share of the base's error that a cell takes away, in percent."""
    ours = cell.stat("best_error") if cell else None
    theirs = base.stat("best_error") if base else None
    if ours is None or theirs is None or theirs.mean == 0:
        return None
    return 100 * (theirs.mean - ours.mean) / theirs.mean


def unlike_paper(cell: Cell, defaults: dict[str, object]) -> str:
    """Say where a cell that is set beside the paper's was not trained as there."""
    figure = published.figure("best_error", cell.algorithm, cell.data, cell.labels, cell.unusual)
    if figure is None or not cell.runs:
        return ""
    config = cell.runs[0].config
    words = [
        f"{key} {format_value(config[key])} instead of {format_value(value)}"
        for key, value in defaults.items()
        if not key.startswith("algo.") and key not in HARMLESS
        if key in config and config[key] != value
    ]
    return ", ".join(words)
