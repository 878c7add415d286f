"""Runs → cells: the runs that differ by nothing but their seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fastssl.config.resolve import flatten, load
from fastssl.config.schema import keys_that_may_differ
from fastssl.errors import UserError
from fastssl.report.aggregation import Stat, figures, stat
from fastssl.report.load import Missing, Run, task_name
from fastssl.sweep.grid import format_value

# What tells no cell from another: seeds, places, and keys without influence on the numbers.
ASIDE = keys_that_may_differ("cells")


@dataclass(slots=True)
class Cell:
    """One entry of a table: data, labels, algorithm, and what is not as in the other cells."""

    data: str
    labels: int | str
    algorithm: str
    settings: dict[str, Any]  # what differs from the group's ordinary value
    unusual: dict[str, Any]  # algo.* that differ from the defaults, for the published figures
    runs: list[Run] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)  # one a run, of `used` runs
    absent: int = 0  # seeds that the sweep wants and that have no run

    @property
    def column(self) -> str:
        """Name of the task: data set and labels."""
        return task_name(self.data, self.labels)

    @property
    def name(self) -> str:
        """Name within a task: the algorithm and what is unusual of it."""
        words = [f"{k.removeprefix('algo.')}={format_value(v)}" for k, v in self.settings.items()]
        return " ".join([self.algorithm, *words])

    @property
    def used(self) -> list[Run]:
        """The runs a mean is taken over: the complete ones, or all if none is."""
        evaluated = [run for run in self.runs if run.evals]
        return [run for run in evaluated if run.complete] or evaluated

    def stat(self, key: str) -> Stat | None:
        """Return mean and deviation of a figure over the seeds."""
        return stat(row.get(key) for row in self.figures)

    def mean_of(self, measure: Callable[[Run], float | None]) -> Stat | None:
        """Return mean and deviation of what `measure` tells of each run."""
        return stat(measure(run) for run in self.used)


def group(runs: list[Run], missing: Iterable[Missing] = ()) -> list[Cell]:
    """Put runs of one cell together, in the order of data, labels and algorithm."""
    families: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        key = str(run.config["data"]), str(run.config["algorithm"])
        families.setdefault(key, []).append(run)
    cells: dict[str, Cell] = {}
    for (data, algorithm), members in families.items():
        defaults = default_values(data, algorithm)
        usual = ordinary(members, defaults)
        for run in members:
            keys = differing(run, usual)
            unusual = {k: v for k, v in differing(run, defaults).items() if k.startswith("algo.")}
            labels = run.config["labels"]
            where = json.dumps([data, algorithm, labels, keys], sort_keys=True, default=str)
            if where not in cells:
                cells[where] = Cell(data, labels, algorithm, keys, unusual)
            cells[where].runs.append(run)
    homes = {run.path: cell for cell in cells.values() for run in cell.runs}
    for gap in missing:
        if gap.like in homes:
            homes[gap.like].absent += 1
    for cell in cells.values():
        cell.figures = [figures(run) for run in cell.used]
    return sorted(cells.values(), key=order)


def order(cell: Cell) -> tuple[Any, ...]:
    """Sort numbers as numbers, and a plain algorithm before its variants."""
    labels = cell.labels if isinstance(cell.labels, int) else 10**9
    return cell.data, labels, cell.algorithm, len(cell.settings), cell.name


@cache
def default_values(data: str, algorithm: str) -> dict[str, Any]:
    """Return what the shipped configuration says, or {} where none fits.

    Names come from a run's config.yaml, which may be anybody's: one that is not in our tables may
    stand for a file, and a report runs none.
    """
    from fastssl.algorithms import ALGORITHMS
    from pipelines.datasets import DATASETS

    if data not in DATASETS or algorithm not in ALGORITHMS:
        return {}
    try:
        found = load(data, {"algorithm": algorithm})
    except UserError:
        return {}
    return flatten(found.as_dict())


def ordinary(runs: list[Run], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the usual value of every key: the default if a run has it, else the commonest."""
    usual = {}
    for key in {key for run in runs for key in run.config} - ASIDE:
        values = [json.dumps(run.config.get(key), default=str) for run in runs]
        default = json.dumps(defaults.get(key), default=str)
        common = Counter(values).most_common(1)[0][0]
        usual[key] = json.loads(default if key in defaults and default in values else common)
    return usual


def differing(run: Run, usual: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a run that have another value than the usual one."""
    return {
        key: value
        for key, value in sorted(run.config.items())
        if key not in ASIDE and key in usual and value != usual[key]
    }
