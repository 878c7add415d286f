"""Groups runs into cells: the runs of a cell differ by nothing but their seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fastssl.config.resolve import flatten, load
from fastssl.config.schema import keys_that_may_differ
from fastssl.errors import UserError
from fastssl.report.load import Missing, Run, task_name, variant_name
from fastssl.report.run_metrics import Stat, run_metrics, stat

IGNORED = keys_that_may_differ("cells")


@dataclass(slots=True)
class Cell:
    """One entry of a table: data, labels, algorithm, and the settings that set it apart."""

    data: str
    labels: int | str
    algorithm: str
    settings: dict[str, Any]  # that differ from the usual value among these runs
    unusual: dict[str, Any]  # algo.* that differ from the defaults, to find the published result
    runs: list[Run] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)  # of each run in `used`
    absent: int = 0  # seeds of the sweep that have no run

    @property
    def task(self) -> str:
        """Name of the task: data set and labels."""
        return task_name(self.data, self.labels)

    @property
    def name(self) -> str:
        """Name within a task: the algorithm and its unusual settings."""
        return variant_name(self.algorithm, self.settings)

    @property
    def full_name(self) -> str:
        """Name among all cells."""
        return f"{self.task}: {self.name}"

    @property
    def used(self) -> list[Run]:
        """The runs that a mean is taken over: the complete ones, or all if none is."""
        evaluated = [run for run in self.runs if run.evals]
        return [run for run in evaluated if run.complete] or evaluated

    def stat(self, key: str) -> Stat | None:
        """Return mean and deviation of a metric over the seeds."""
        return stat(row.get(key) for row in self.metrics)


def group(runs: list[Run], missing: Iterable[Missing] = ()) -> list[Cell]:
    """Return the cells of runs in the order of data, labels and algorithm."""
    families: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        key = str(run.config["data"]), str(run.config["algorithm"])
        families.setdefault(key, []).append(run)
    cells: dict[str, Cell] = {}
    for (data, algorithm), members in families.items():
        defaults = default_values(data, algorithm)
        usual = usual_values(members, defaults)
        for run in members:
            settings, labels = differing(run, usual), run.config["labels"]
            unusual = {k: v for k, v in differing(run, defaults).items() if k.startswith("algo.")}
            key_ = json.dumps([data, algorithm, labels, settings], sort_keys=True, default=str)
            cell = cells.setdefault(key_, Cell(data, labels, algorithm, settings, unusual))
            cell.runs.append(run)
    by_path = {run.path: cell for cell in cells.values() for run in cell.runs}
    for gap in missing:
        if gap.sibling in by_path:
            by_path[gap.sibling].absent += 1
    for cell in cells.values():
        cell.metrics = [run_metrics(run) for run in cell.used]
    return sorted(cells.values(), key=sort_key)


def sort_key(cell: Cell) -> tuple[Any, ...]:
    """Sort labels as numbers, and a plain algorithm before its variants."""
    labels = cell.labels if isinstance(cell.labels, int) else 10**9
    return cell.data, labels, cell.algorithm, len(cell.settings), cell.name


@cache
def default_values(data: str, algorithm: str) -> dict[str, Any]:
    """Return the values of the shipped configuration, or {} if there is none.

    The names come from a run's config.yaml, which anybody may have written. A name that is not in
    our tables may stand for a file with code, and a report never executes code of a run.
    """
    from fastssl.algorithms import ALGORITHMS
    from pipelines.datasets import DATASETS

    if data not in DATASETS or algorithm not in ALGORITHMS:
        return {}
    try:
        return flatten(load(data, {"algorithm": algorithm}).as_dict())
    except UserError:
        return {}


def usual_values(runs: list[Run], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the usual value of every key: the default if a run has it, else the commonest."""
    usual = {}
    for key in {key for run in runs for key in run.config} - IGNORED:
        # As JSON, because lists can't be counted.
        values = [json.dumps(run.config.get(key), default=str) for run in runs]
        default = json.dumps(defaults.get(key), default=str)
        common = Counter(values).most_common(1)[0][0]
        usual[key] = json.loads(default if key in defaults and default in values else common)
    return usual


def differing(run: Run, usual: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a run whose value is not the usual one."""
    return {
        key: value
        for key, value in sorted(run.config.items())
        if key not in IGNORED and key in usual and value != usual[key]
    }
