"""`fastssl sweep --dry-run`: the cells of a sweep, and how long they will take.

The time of a step comes from a cell of the same kind that has been trained. If there is none, a
process measures a few steps.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from fastssl.errors import DataError
from fastssl.sweep.cell_state import is_done, read_summary
from fastssl.sweep.child_process import train_command
from fastssl.sweep.grid import Cell
from fastssl.tracking.console import clock
from fastssl.tracking.tables import show

Kind = tuple[str, str, str, int, int | None, str]
NO_DATA = "their dataset is not converted"


def kind_of(cell: Cell) -> Kind:
    """Return what decides the time of a step; cells of one kind take equally long."""
    config = cell.resolved.config
    settings = cell.resolved.settings.model_dump_json()
    return cell.config, config.algorithm, config.model, config.batch, config.ratio, settings


def print_estimate(name: str, cells: list[Cell], folder: Path, jobs: int) -> None:
    """Print the steps, state and remaining time of every cell, and the sum."""
    times = step_times(cells, folder, jobs)
    rows: list[dict[str, Any]] = []
    total, todo = 0.0, 0
    unknown: Counter[str] = Counter()
    for cell in cells:
        path, steps = folder / cell.name, cell.resolved.config.steps
        row = {"cell": cell.name, "steps": steps, "state": "done", "left": "-"}
        if is_done(path):
            row["state"] = "done" if read_summary(path)["status"] == "finished" else "out of time"
        else:
            todo += 1
            row["state"] = "begun" if path.exists() else "to do"
            left = steps - int(read_summary(path).get("steps") or 0)
            step = times[kind_of(cell)]
            if isinstance(step, str):
                unknown[step] += 1
                row["left"] = "?"
            elif left:
                total += left * step
                row["left"] = clock(left * step)
        rows.append(row)
    show(rows, False)
    print(f"{name}: {len(cells)} cells, {todo} to train, about {clock(total / jobs)} of training")
    for reason, count in unknown.items():
        print(f"the time of {count} cells is not known: {reason}")


def step_times(cells: list[Cell], folder: Path, jobs: int) -> dict[Kind, float | str]:
    """Return the seconds of a step by kind, or why they could not be measured."""
    times: dict[Kind, float | str] = {}
    for cell in cells:
        seconds = read_summary(folder / cell.name).get("seconds_per_step")
        if isinstance(seconds, float):
            times.setdefault(kind_of(cell), seconds)
    no_data: set[str] = set()  # configurations: one attempt each is enough
    for cell in cells:
        kind = kind_of(cell)
        if kind in times or is_done(folder / cell.name):
            continue
        times[kind] = NO_DATA if cell.config in no_data else measure_step(cell, jobs)
        if times[kind] == NO_DATA:
            no_data.add(cell.config)
    return times


def measure_step(cell: Cell, jobs: int) -> float | str:
    """Measure the seconds of a step in a new process; return the reason if that fails."""
    command = train_command(cell, jobs, "--dry-run", "--json")
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode == 0:
        return float(json.loads(ended.stdout)["seconds_per_step"])
    if ended.returncode == DataError.exit_code:
        return NO_DATA
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"the dry run ended with exit code {ended.returncode}"
