"""Reads run folders. A damaged one is left out and reported; it never stops a report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fastssl import plugins
from fastssl.config.renamed import translate
from fastssl.config.resolve import flatten, saved_values
from fastssl.config.yaml_files import read_yaml
from fastssl.errors import DataError
from fastssl.report.records import MetricsLine, Summary, number
from fastssl.sweep.cell_state import is_locked, read_cells, read_json, read_summary
from fastssl.tracking.metrics import read_lines
from fastssl.tracking.run_dir import COMPLETE
from pipelines.datasets import DATASETS
from pipelines.text import for_terminal

POINTS = 200  # training lines kept of one run: enough for a curve
RECENT = 61  # training lines kept at the end of a run, for the time of a step
LARGEST_METRICS = 2**30  # bytes; a long run on ImageNet writes 400 MB
MOST_LINES = 100_000  # kept of one run
DAMAGE = (OSError, ValueError, TypeError, RecursionError, DataError)


@dataclass(slots=True)
class Run:
    """The content of one run folder."""

    path: Path
    name: str
    config: dict[str, Any]  # flat: algo.threshold
    status: str  # finished, out of time, interrupted, failed, running, unfinished, missing
    summary: Summary
    environment: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # hashes of store, label file and code
    missing: bool = False  # a cell of a sweep without a run folder
    evals: list[MetricsLine] = field(default_factory=list)
    trains: list[MetricsLine] = field(default_factory=list)  # at most about POINTS
    recent: list[MetricsLine] = field(default_factory=list)  # the last RECENT of training

    def __post_init__(self) -> None:
        for key in ("data", "algorithm"):  # names, whatever the file has
            self.config[key] = for_terminal(str(self.config[key]))

    @property
    def complete(self) -> bool:
        """Whether the run needs no more training."""
        return self.status in COMPLETE

    @property
    def source(self) -> tuple[str, str]:
        """What identifies the images and the labels: hashes, or paths if 0.1.0 made the run."""
        config = self.config
        store = "" if config.get("data") in DATASETS else str(config.get("store") or "")
        labels = str(config.get("label_file") or "")
        return self.inputs.get("store", store), self.inputs.get("label_file", labels)

    @property
    def steps(self) -> int:
        """The last step with a line of metrics."""
        return max([line.step for line in (*self.evals[-1:], *self.recent[-1:])], default=0)


@dataclass(slots=True)
class Found:
    """All runs, the cells of sweeps that have no run folder, and what could not be read."""

    runs: list[Run]
    missing: list[Run]  # their config holds the keys that the sweep sets
    problems: list[str]


def read_all(paths: list[Path]) -> Found:
    """Read every run in or under the paths, each once."""
    found = Found([], [], [])
    given = ", ".join(str(path) for path in paths)
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist", "give run folders, or folders of runs")
    roots = [path.resolve() for path in paths]
    folders = list(dict.fromkeys(folder for root in roots for folder in run_folders(root)))
    base = Path(os.path.commonpath(roots))
    for folder in folders:
        name = for_terminal(str(folder.relative_to(base)) if folder != base else folder.name)
        try:
            found.runs.append(read_run(folder, name))
        except DAMAGE as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            reason = reason.replace(f"{folder}{os.sep}", "")  # a report may be passed on
            found.problems.append(f"{name} can't be read and is left out: {reason}")
    for folder in dict.fromkeys([*roots, *(folder.parent for folder in folders)]):
        found.missing += missing_cells(folder, found.runs)
    if not found.runs and not found.missing:
        raise DataError(f"there is no run in {given}", "give the --out of a training or a sweep")
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
    config = read_yaml(folder / "config.yaml", DataError)
    if not {"data", "algorithm", "labels"} <= config.keys():
        raise ValueError("config.yaml is not that of a run")
    json.dumps(config, sort_keys=True)  # raises TypeError for keys and values that no run writes
    summary = Summary.model_validate(read_summary(folder))
    status = "running" if is_locked(folder) else summary.status or "unfinished"
    environment = read_json(folder / "environment.json")
    inputs = environment.get("inputs")
    inputs = {k: str(v) for k, v in inputs.items()} if isinstance(inputs, dict) else {}
    # Edited code under an unchanged name is another algorithm, model or dataset.
    code = {f"{key}_code": inputs[key][:8] for key in plugins.GROUPS if key in inputs}
    values = saved_values(config) | code
    changed = environment.get("changed_inputs")  # while it was trained, with --accept-changes
    if isinstance(changed, list):
        values["changed_inputs"] = ",".join(map(str, changed))
    run = Run(folder, name, values, status, summary, environment, inputs)
    read_metrics(run, folder / "metrics.jsonl")
    return run


def read_metrics(run: Run, path: Path) -> None:
    """Read the lines of a run, without those that are damaged or step backward."""
    if not path.is_file():
        return
    if path.stat().st_size > LARGEST_METRICS:
        raise ValueError(f"metrics.jsonl has more than {LARGEST_METRICS:,} bytes")
    # Lines are kept by their step, not their number: runs of one length keep the same steps.
    every = max(1, int(number(run.config.get("log_every")) or 1))
    stride = every * max(1, round((number(run.config.get("steps")) or 0) / every / POINTS))
    last = {"eval": -1, "train": -1}
    for _, content in read_lines(path):
        kind = str(content.get("kind"))
        try:
            line = MetricsLine.model_validate(content)
        except ValidationError:
            continue
        if line.step <= last.get(kind, line.step):
            continue
        last[kind] = line.step
        if kind == "eval":
            run.evals.append(line)
        else:
            run.recent = [*run.recent[1 - RECENT :], line]
            if line.step % stride == 0:
                run.trains.append(line)
        if len(run.evals) + len(run.trains) > MOST_LINES:
            raise ValueError(f"metrics.jsonl has more than {MOST_LINES:,} lines to show")
    if run.recent and run.recent[-1] not in run.trains[-1:]:
        run.trains.append(run.recent[-1])


def missing_cells(folder: Path, runs: list[Run]) -> list[Run]:
    """Return the cells in a sweep's list that have no run folder; `runs` are those that have."""
    missing = []
    for cell in read_cells(folder):
        path = folder / cell.name
        if not os.path.isfile(path / "config.yaml"):
            task = {"data": cell.data, "labels": cell.labels, "algorithm": cell.algorithm}
            status = f"failed (exit {cell.exit})" if cell.exit else "missing"
            config = translate(flatten({**cell.keys, **task}))
            summary = Summary(exit=cell.exit)
            name = for_terminal(cell.name)
            gap = Run(path, name, config, status, summary, missing=True)
            siblings = [run for run in runs if run.path.parent == folder and is_sibling(run, gap)]
            gap.inputs = siblings[0].inputs if siblings else {}
            missing.append(gap)
    return missing


def is_sibling(run: Run, gap: Run) -> bool:
    """Return True if a run of a sweep has the images and labels that a missing one would have."""
    keys = ("data", "store", "label_file")
    return all(run.config.get(key) == gap.config[key] for key in keys if key in gap.config)
