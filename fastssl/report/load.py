"""Run folders → what a report needs of them; a damaged one is told of, never fatal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fastssl.config.resolve import saved_values
from fastssl.errors import DataError
from fastssl.sweep.cell_state import COMPLETE, SWEEP_FILE, is_locked, read_json
from fastssl.sweep.grid import format_value

FURTHEST = 2**53  # a step beyond this is no number of a run
POINTS = 200  # lines of training kept of one run: enough for a curve
DAMAGE = (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError, DataError)
RECENT = 60  # lines of training at the end, all kept, to tell the time of a step


@dataclass(slots=True)
class Run:
    """One run folder, read."""

    path: Path
    name: str
    config: dict[str, Any]  # flat: algo.threshold
    status: str  # finished, out of time, interrupted, failed, running, unfinished
    summary: dict[str, Any] = field(default_factory=dict)
    evals: list[dict[str, Any]] = field(default_factory=list)
    trains: list[dict[str, Any]] = field(default_factory=list)
    recent: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.status in COMPLETE

    @property
    def steps(self) -> int:
        """The last step that is written down."""
        return max([line["step"] for line in (*self.evals[-1:], *self.recent[-1:])], default=0)


@dataclass(frozen=True, slots=True)
class Missing:
    """A cell that a sweep wants and that has no run folder."""

    name: str
    task: str
    variant: str  # the algorithm and its settings, as a table names a cell
    exit: int | None  # where it failed before it began
    like: Path | None  # a run that differs by its seed alone

    @property
    def text(self) -> str:
        """What a table says in its place."""
        return "missing" if self.exit is None else f"failed (exit {self.exit})"


@dataclass(slots=True)
class Found:
    """All runs, the cells that sweeps wanted but that are not there, and what could not be read."""

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
            add(found, folder, name)
        for folder in {root, *(folder.parent for folder in folders)}:
            read_book(found, folder)
    if not found.runs and not found.missing:
        given = ", ".join(str(path) for path in paths)
        raise DataError(f"there is no run in {given}", "give the --out of a training or a sweep")
    unique_names(found.runs)
    return found


def run_folders(root: Path) -> Iterator[Path]:
    """Walk the run folders under a path in the order of their names."""
    for place, folders, files in os.walk(root):
        folders.sort()
        if "config.yaml" in files:
            folders.clear()
            yield Path(place)
        folders[:] = [name for name in folders if not name.startswith(".")]


def add(found: Found, folder: Path, name: str) -> None:
    """Read a run, or note why it can't be read."""
    try:
        found.runs.append(read_run(folder, name))
    except DAMAGE as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        found.problems.append(f"{name} can't be read and is left out: {why}")


def read_run(folder: Path, name: str) -> Run:
    """Read one run folder."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not {"data", "algorithm", "labels"} <= config.keys():
        raise ValueError("config.yaml is not that of a run")
    json.dumps(config, sort_keys=True)  # a TypeError for keys and values that no run writes
    summary = read_json(folder / "summary.json")
    waiting = "running" if is_locked(folder) else "unfinished"
    status = "running" if is_locked(folder) else str(summary.get("status", waiting))
    run = Run(folder, name, saved_values(config), status, summary)
    run.environment = read_json(folder / "environment.json")
    read_metrics(run, folder / "metrics.jsonl")
    return run


def read_metrics(run: Run, path: Path) -> None:
    """Read all evaluations, but only so many lines of training as a curve shows.

    Which lines are kept goes by the step, so that runs of one length keep the same ones.
    """
    if not path.exists():
        return
    every = max(1, int(number(run.config.get("log_every")) or 1))
    stride = every * max(1, round((number(run.config.get("steps")) or 0) / every / POINTS))
    last: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if '"kind": "train"' in line:
            last = [*last[-RECENT:], line]
            if step_of(line) % stride:
                continue
            keep(run.trains, line)
        else:
            keep(run.evals, line)
    for line in last:
        keep(run.recent, line)
    if run.recent and (not run.trains or run.trains[-1]["step"] != run.recent[-1]["step"]):
        run.trains.append(run.recent[-1])


def step_of(line: str) -> int:
    """Return the step of a line without reading the whole of it."""
    start = line.find('"step": ') + 8
    digits = line[start : line.find(",", start)]
    return int(digits) if digits.isdigit() else 0


def keep(lines: list[dict[str, Any]], line: str) -> None:
    """Add a line, unless it is torn or goes back behind one that is there."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return
    step = found.get("step") if isinstance(found, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= FURTHEST:
        return
    if "kind" in found and not (lines and lines[-1]["step"] >= step):
        lines.append(found)


def read_book(found: Found, folder: Path) -> None:
    """Compare what a sweep wanted with what is there."""
    book = read_json(folder / SWEEP_FILE)
    cells = book.get("cells")
    rows = [row for row in cells if isinstance(row, dict)] if isinstance(cells, list) else []
    rows = [row for row in rows if isinstance(row.get("name"), str)]
    present = [row for row in rows if os.path.isfile(folder / row["name"] / "config.yaml")]
    alike = {identity(row): folder / row["name"] for row in present}
    for row in rows:
        if row not in present:
            code = row.get("exit")
            failed = code if isinstance(code, int) and code else None
            task = task_name(row.get("data"), row.get("labels"))
            like = alike.get(identity(row))
            found.missing.append(Missing(row["name"], task, variant(row), failed, like))


def wanted_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that a sweep laid over the configuration of a cell, its seeds aside."""
    keys = row.get("keys")
    found = keys if isinstance(keys, dict) else {}
    return {key: value for key, value in found.items() if key not in ("seed", "split_seed")}


def identity(row: dict[str, Any]) -> str:
    """Return what the cells of a sweep share that differ by their seed alone."""
    task = [row.get(key) for key in ("data", "labels", "algorithm")]
    return json.dumps([task, wanted_keys(row)], sort_keys=True)


def variant(row: dict[str, Any]) -> str:
    """Name a cell by its algorithm and the settings of it that the sweep lays down."""
    settings = {k: v for k, v in sorted(wanted_keys(row).items()) if k.startswith("algo.")}
    texts = [f"{k.removeprefix('algo.')}={format_value(v)}" for k, v in settings.items()]
    return " ".join([str(row.get("algorithm")), *texts])


def task_name(data: Any, labels: Any) -> str:
    """Name a task: data set and labels."""
    return f"{data}, {labels} labels"


def unique_names(runs: list[Run]) -> None:
    """Put the parent's name before names that stand twice, then a number."""
    for number_ in range(2):
        names = [run.name for run in runs]
        for place, run in enumerate(runs):
            if names.count(run.name) > 1:
                run.name = (
                    f"{run.path.resolve().parent.name}/{run.name}"
                    if number_ == 0
                    else f"{run.name} ({place})"
                )


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


def numbers(value: Any) -> list[float | None]:
    """Return a list of finite numbers with None in the place of anything else."""
    return [number(item) for item in value] if isinstance(value, list) else []
