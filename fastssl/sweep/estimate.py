"""`fastssl sweep --dry-run`: the cells, and how long they will take.

A step's time is taken from a cell of the same kind that has run; else three steps are tried.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from fastssl.errors import DataError
from fastssl.sweep.grid import Cell
from fastssl.sweep.runner import done, summary, train_overrides
from fastssl.tracking.console import clock
from fastssl.tracking.tables import show as show_table

Kind = tuple[str, str, str, int, int | None, str]
NO_DATA = "their data are not here"


def kind(cell: Cell) -> Kind:
    """Return what decides the time of a step."""
    config = cell.resolved.config
    settings = cell.resolved.settings.model_dump_json()
    return cell.config, config.algorithm, config.model, config.batch, config.ratio, settings


def show(name: str, cells: list[Cell], folder: Path, jobs: int) -> int:
    """Print every cell with its steps, state and time, and the sum."""
    times, reasons = measured(cells, folder, jobs)
    rows: list[dict[str, Any]] = []
    total = 0.0
    unknown: Counter[str] = Counter()
    for cell in cells:
        path = folder / cell.name
        finished = done(path, cell)
        left = 0 if finished else cell.resolved.config.steps - int(summary(path).get("steps") or 0)
        step = times.get(kind(cell))
        if left and step is None:
            unknown[reasons.get(kind(cell), NO_DATA)] += 1
        total += left * (step or 0.0)
        state = "done" if finished else "begun" if path.exists() else "to do"
        rows.append(
            {
                "cell": cell.name,
                "steps": cell.resolved.config.steps,
                "state": state,
                "left": "-" if not left else "?" if step is None else clock(left * step),
            }
        )
    show_table(rows, False)
    todo = sum(row["state"] != "done" for row in rows)
    print(f"{name}: {len(cells)} cells, {todo} to train, about {clock(total / jobs)} of training")
    for reason, count in unknown.items():
        print(f"the time of {count} cells is not known: {reason}")
    return 0


def measured(
    cells: list[Cell], folder: Path, jobs: int
) -> tuple[dict[Kind, float], dict[Kind, str]]:
    """Return seconds a step by kind, from runs that exist or from a try; and why tries failed."""
    times: dict[Kind, float] = {}
    reasons: dict[Kind, str] = {}
    for cell in cells:
        seconds = summary(folder / cell.name).get("seconds_per_step")
        if isinstance(seconds, float):
            times.setdefault(kind(cell), seconds)
    missing: set[str] = set()  # configurations whose data are not here
    for cell in cells:
        this = kind(cell)
        if this in times or this in reasons or cell.config in missing:
            continue
        if done(folder / cell.name, cell):
            continue
        tried = rehearse(cell, jobs)
        if isinstance(tried, float):
            times[this] = tried
        else:
            reasons[this] = tried
            missing |= {cell.config} if tried == NO_DATA else set()
    return times, reasons


def rehearse(cell: Cell, jobs: int) -> float | str:
    """Try a few steps of a cell in a process of its own; where that fails, return why."""
    words = train_overrides(cell, jobs)
    line = [sys.executable, "-m", "fastssl", "train", cell.config, *words, "--dry-run"]
    ended = subprocess.run(line, capture_output=True, text=True)
    found = re.search(r"dry run: ([\d.]+) ms a step", ended.stdout + ended.stderr)
    if found and ended.returncode == 0:
        return float(found[1]) / 1000
    if ended.returncode == DataError.exit_code:
        return NO_DATA
    told = [text.strip() for text in ended.stderr.splitlines() if text.strip()]
    return told[-1] if told else f"a try ended with exit {ended.returncode}"
