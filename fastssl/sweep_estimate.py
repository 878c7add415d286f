"""`fastssl sweep --dry-run`: the cells, and how long they will take.

A step's time is taken from a cell of the same kind that has run; else three steps are tried.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fastssl.display import clock
from fastssl.grid import Cell
from fastssl.sweep import done, summary
from fastssl.tables import show as show_table

Kind = tuple[str, str, str, int]


def kind(cell: Cell) -> Kind:
    """Return what decides the time of a step."""
    config = cell.loaded.config
    return cell.config, config.algorithm, config.model, config.batch


def show(name: str, cells: list[Cell], folder: Path, jobs: int) -> int:
    """Print every cell with its steps, state and time, and the sum."""
    times = measured(cells, folder)
    rows: list[dict[str, Any]] = []
    total, unknown = 0.0, 0
    for cell in cells:
        path = folder / cell.name
        finished = done(path, cell)
        left = 0 if finished else cell.loaded.config.steps - int(summary(path).get("steps") or 0)
        step = times.get(kind(cell))
        if left and step is None:
            unknown += 1
        total += left * (step or 0.0)
        state = "done" if finished else "begun" if path.exists() else "to do"
        rows.append(
            {
                "cell": cell.name,
                "steps": cell.loaded.config.steps,
                "state": state,
                "left": "-" if not left else "?" if step is None else clock(left * step),
            }
        )
    show_table(rows, False)
    todo = sum(row["state"] != "done" for row in rows)
    print(f"{name}: {len(cells)} cells, {todo} to train, about {clock(total / jobs)} of training")
    if unknown:
        print(f"the time of {unknown} cells is not known: their data are not here")
    return 0


def measured(cells: list[Cell], folder: Path) -> dict[Kind, float]:
    """Return seconds a step by kind: from runs that exist, else from a try of three steps."""
    times: dict[Kind, float] = {}
    for cell in cells:
        seconds = summary(folder / cell.name).get("seconds_per_step")
        if isinstance(seconds, float):
            times.setdefault(kind(cell), seconds)
    missing: set[str] = set()  # configurations whose data are not here
    for cell in cells:
        if kind(cell) in times or cell.config in missing or done(folder / cell.name, cell):
            continue
        seconds = rehearse(cell)
        if seconds is None:
            missing.add(cell.config)
        else:
            times[kind(cell)] = seconds
    return times


def rehearse(cell: Cell) -> float | None:
    """Try a few steps of a cell in a process of its own; None where that fails."""
    line = [sys.executable, "-m", "fastssl", "train", cell.config, *cell.words(), "--dry-run"]
    ended = subprocess.run(line, capture_output=True, text=True)
    found = re.search(r"dry run: ([\d.]+) ms a step", ended.stdout + ended.stderr)
    return float(found[1]) / 1000 if found and ended.returncode == 0 else None
