"""Reads run folders. A damaged one is left out and reported; it never stops a report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fastssl.config.resolve import saved_values
from fastssl.errors import DataError
from fastssl.report.records import MetricsLine, Summary, SweepCell, number
from fastssl.sweep.cell_state import COMPLETE, SWEEP_FILE, is_locked, read_json, read_summary
from fastssl.sweep.grid import format_value
from fastssl.tracking.metrics import read_metrics

POINTS = 200  # training lines kept of one run: enough for a curve
RECENT = 61  # training lines kept at the end of a run, for the time of a step
DAMAGE = (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError, DataError)


@dataclass(slots=True)
class Run:
    """The content of one run folder."""

    path: Path
    name: str
    config: dict[str, Any]  # flat: algo.threshold
    status: str  # finished, out of time, interrupted, failed, running, unfinished
    summary: Summary
    environment: dict[str, Any]
    evals: list[MetricsLine] = field(default_factory=list)
    trains: list[MetricsLine] = field(default_factory=list)  # at most about POINTS
    recent: list[MetricsLine] = field(default_factory=list)  # the last RECENT of training

    @property
    def complete(self) -> bool:
        """Whether the run needs no more training."""
        return self.status in COMPLETE

    @property
    def steps(self) -> int:
        """The last step with a line of metrics."""
        return max([line.step for line in (*self.evals[-1:], *self.recent[-1:])], default=0)


@dataclass(frozen=True, slots=True)
class Missing:
    """A cell of a sweep without a run folder."""

    name: str
    task: str
    variant: str  # the algorithm and its settings, as tables name a cell
    exit: int | None  # the exit code if it failed before it began
    sibling: Path | None  # a run of the same sweep that differs by its seed alone

    @property
    def text(self) -> str:
        """What a table shows instead of a result."""
        return "missing" if self.exit is None else f"failed (exit {self.exit})"


@dataclass(slots=True)
class Found:
    """All runs, the cells of sweeps that have no run, and what could not be read."""

    runs: list[Run]
    missing: list[Missing]
    problems: list[str]


def read_all(paths: list[Path]) -> Found:
    """Read every run in or under the paths."""
    found = Found([], [], [])
    for root in paths:
        if not root.exists():
            raise DataError(f"{root} does not exist", "give run folders, or folders of runs")
        folders = list(run_folders(root))
        for folder in folders:
            name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
            try:
                found.runs.append(read_run(folder, name))
            except DAMAGE as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                found.problems.append(f"{name} can't be read and is left out: {reason}")
        for folder in {root, *(folder.parent for folder in folders)}:
            found.missing += missing_cells(folder)
    if not found.runs and not found.missing:
        given = ", ".join(str(path) for path in paths)
        raise DataError(f"there is no run in {given}", "give the --out of a training or a sweep")
    unique_names(found.runs)
    return found


def run_folders(root: Path) -> Iterator[Path]:
    """Walk the run folders under a path in the order of their names."""
    for path, folders, files in os.walk(root):
        folders.sort()
        if "config.yaml" in files:
            folders.clear()
            yield Path(path)
        folders[:] = [name for name in folders if not name.startswith(".")]


def read_run(folder: Path, name: str) -> Run:
    """Read one run folder."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not {"data", "algorithm", "labels"} <= config.keys():
        raise ValueError("config.yaml is not that of a run")
    json.dumps(config, sort_keys=True)  # raises TypeError for keys and values that no run writes
    summary = Summary.model_validate(read_summary(folder))
    status = "running" if is_locked(folder) else str(summary.status or "unfinished")
    environment = read_json(folder / "environment.json")
    run = Run(folder, name, saved_values(config), status, summary, environment)
    run.evals = read_lines(folder, "eval")
    trains = read_lines(folder, "train")
    run.recent = trains[-RECENT:]
    # Lines are kept by their step, not their number: runs of one length keep the same steps.
    every = max(1, int(number(run.config.get("log_every")) or 1))
    stride = every * max(1, round((number(run.config.get("steps")) or 0) / every / POINTS))
    run.trains = [line for line in trains if line.step % stride == 0 or line is trains[-1]]
    return run


def read_lines(folder: Path, kind: str) -> list[MetricsLine]:
    """Return the lines of one kind, without those that are damaged or step backward."""
    lines: list[MetricsLine] = []
    for content in read_metrics(folder / "metrics.jsonl", kind):
        try:
            line = MetricsLine.model_validate(content)
        except ValidationError:
            continue
        if not lines or line.step > lines[-1].step:
            lines.append(line)
    return lines


def missing_cells(folder: Path) -> list[Missing]:
    """Return the cells in a sweep's list that have no run folder."""
    rows = read_json(folder / SWEEP_FILE).get("cells")
    cells = []
    for row in rows if isinstance(rows, list) else []:
        try:
            cells.append(SweepCell.model_validate(row))
        except ValidationError:
            continue
    present = [cell for cell in cells if os.path.isfile(folder / cell.name / "config.yaml")]
    siblings = {identity(cell): folder / cell.name for cell in present}
    return [
        Missing(
            cell.name,
            task_name(cell.data, cell.labels),
            variant_name(str(cell.algorithm), keys_but_seeds(cell), only_algo=True),
            cell.exit if isinstance(cell.exit, int) and cell.exit else None,
            siblings.get(identity(cell)),
        )
        for cell in cells
        if cell not in present
    ]


def keys_but_seeds(cell: SweepCell) -> dict[str, Any]:
    """Return the keys of a cell that change more than chance."""
    return {k: v for k, v in sorted(cell.keys.items()) if k not in ("seed", "split_seed")}


def identity(cell: SweepCell) -> str:
    """Return what the cells of a sweep that differ by their seed alone have in common."""
    task = [cell.data, cell.labels, cell.algorithm]
    return json.dumps([task, keys_but_seeds(cell)], sort_keys=True)


def variant_name(algorithm: str, settings: dict[str, Any], *, only_algo: bool = False) -> str:
    """Return the name of a cell within its task: the algorithm and the settings given."""
    texts = [
        f"{key.removeprefix('algo.')}={format_value(value)}"
        for key, value in settings.items()
        if key.startswith("algo.") or not only_algo
    ]
    return " ".join([algorithm, *texts])


def task_name(data: Any, labels: Any) -> str:
    """Return the name of a task: data set and labels."""
    return f"{data}, {labels} labels"


def unique_names(runs: list[Run]) -> None:
    """Put the parent folder before names that occur twice, then add a number if need be."""
    for attempt in range(2):
        names = [run.name for run in runs]
        for index, run in enumerate(runs):
            if names.count(run.name) > 1:
                parent = run.path.resolve().parent.name
                run.name = f"{run.name} ({index})" if attempt else f"{parent}/{run.name}"
