"""Groups runs into cells: the runs of a cell differ by nothing but their seed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fastssl.algorithms import ALGORITHMS
from fastssl.config.resolve import flatten, load
from fastssl.config.schema import keys_that_may_differ
from fastssl.errors import UserError
from fastssl.report.load import Run
from fastssl.report.run_metrics import Stat, best_line, run_metrics, stat
from fastssl.sweep.grid import format_value
from pipelines.datasets import DATASETS
from pipelines.text import for_terminal

IGNORED = keys_that_may_differ("cells")
# What a run learned from, and how a report names it where it is not known or absent.
SOURCES = {"store": "unknown", "label_file": "none"}


@dataclass
class Cell:
    """One entry of a table: data, labels, algorithm, and the settings that set it apart."""

    data: str
    source: str  # of the images and labels, if the runs on `data` have several
    labels: int | str
    algorithm: str
    settings: dict[str, Any]  # that differ from the usual value among these runs
    unusual: dict[str, Any]  # algo.* that differ from the defaults, to find the published result
    runs: list[Run] = field(default_factory=list)
    missing: list[Run] = field(default_factory=list)  # seeds of a sweep without a run folder

    @property
    def task(self) -> str:
        """Name of the task: dataset and labels."""
        source = f" ({self.source})" if self.source else ""
        return for_terminal(f"{self.data}{source}, {self.labels} labels")

    @property
    def name(self) -> str:
        """Name within a task: the algorithm and its unusual settings."""
        settings = self.settings.items()
        texts = [f"{key.removeprefix('algo.')}={format_value(value)}" for key, value in settings]
        return for_terminal(" ".join([self.algorithm, *texts]))

    @property
    def full_name(self) -> str:
        """Name among all cells."""
        return f"{self.task}: {self.name}"

    @cached_property
    def used(self) -> list[Run]:
        """The runs that a mean is taken over: the complete ones, or all if none is."""
        evaluated = [run for run in self.runs if run.evals]
        return [run for run in evaluated if run.complete] or evaluated

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each run in `used`."""
        return [run_metrics(run) for run in self.used]

    def stat(self, key: str) -> Stat | None:
        """Return mean and deviation of a metric over the seeds."""
        return stat(row.get(key) for row in self.metrics)

    @cached_property
    def class_means(self) -> list[Stat | None]:
        """Mean and deviation of the accuracy of each class at the best evaluation."""
        lines = [line for line in map(best_line, self.used) if line and line.class_accuracy]
        rows = [line.class_accuracy for line in lines]  # [runs][classes]
        return [stat(values) for values in zip(*rows, strict=False)]

    def class_names(self, count: int) -> list[str]:
        """Return the names of the classes: the run's own, those of the dataset, or numbers."""
        known = [run.environment.get("class_names") for run in self.runs]
        known.append(DATASETS[self.data].class_names if self.data in DATASETS else None)
        for names in known:
            if isinstance(names, list | tuple) and len(names) == count:
                return [for_terminal(str(name)) for name in names]
        return [str(c) for c in range(count)]


def group(runs: list[Run]) -> list[Cell]:
    """Return the cells of runs in the order of data, labels and algorithm."""
    families: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        families.setdefault((run.config["data"], run.config["algorithm"]), []).append(run)
    cells: dict[str, Cell] = {}
    for (data, algorithm), members in families.items():
        defaults = default_values(data, algorithm)
        usual = usual_values(members, defaults)
        names = source_names([run for run in runs if run.config["data"] == data])
        for run in members:
            settings, labels = differing(run, usual), run.config["labels"]
            unusual = {k: v for k, v in differing(run, defaults).items() if k.startswith("algo.")}
            identity = [data, run.source, algorithm, labels, settings]
            key_ = json.dumps(identity, sort_keys=True, default=str)
            source = names[run.source]
            cell = cells.setdefault(key_, Cell(data, source, labels, algorithm, settings, unusual))
            (cell.missing if run.missing else cell.runs).append(run)
    return sorted(cells.values(), key=sort_key)


def source_names(runs: list[Run]) -> dict[tuple[str, str], str]:
    """Return how a report names the images and labels of runs on one dataset: as "" if equal."""
    first = {run.source: run for run in reversed(runs)}
    several = [len(set(column)) > 1 for column in zip(*first, strict=True)]
    names = {}
    for source, run in first.items():
        parts = []
        for (key, absent), content, shown in zip(SOURCES.items(), source, several, strict=True):
            path = run.config.get(key)
            name = Path(path).name if isinstance(path, str) else ""
            content = "" if content == path else content[:8]
            if shown:
                parts.append(f"{key} {' '.join(filter(None, [name, content])) or absent}")
        names[source] = ", ".join(parts)
    return names


def by_task(cells: list[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each task, in their order."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.task, []).append(cell)
    return found


def worst_and_best(scores: list[float], limit: int) -> list[int]:
    """Return the indices of all scores or, of more than `limit`, those of the worst and best."""
    indices = list(range(len(scores)))
    if len(scores) <= limit:
        return indices
    ranked = sorted(indices, key=scores.__getitem__)
    return ranked[: limit // 2] + ranked[-limit // 2 :]


def sort_key(cell: Cell) -> tuple[Any, ...]:
    """Sort labels as numbers, and a plain algorithm before its variants."""
    labels = cell.labels if isinstance(cell.labels, int) else 10**9
    return cell.data, cell.source, labels, cell.algorithm, len(cell.settings), cell.name


@cache
def default_values(data: str, algorithm: str) -> dict[str, Any]:
    """Return the values of the shipped configuration, or {} if there is none.

    The names come from a run's config.yaml, which anybody may have written. A name that is not in
    our tables may stand for a file with code, and a report never executes code of a run.
    """
    if data not in DATASETS or algorithm not in ALGORITHMS:
        return {}
    try:
        config = load(data, {"algorithm": algorithm}).config
        return flatten({**config.model_dump(), **config.averages()})
    except UserError:
        return {}


def usual_values(runs: list[Run], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the usual value of every key: the default if a run has it, else the commonest."""
    usual = {"changed_inputs": ""}  # a run that has the key is always set apart
    for key in {key for run in runs for key in run.config} - IGNORED - usual.keys():
        # As JSON, because lists can't be counted.
        values = [json.dumps(run.config[key], default=str) for run in runs if key in run.config]
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
