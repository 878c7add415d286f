"""The content of a report, independent of its format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastssl.report import plots, tables
from fastssl.report.cells import Cell
from fastssl.report.compare import FIXMATCH, levels, published_result, reached, reduction
from fastssl.report.load import Found, Run
from fastssl.report.notes import notes
from fastssl.report.table import Table
from fastssl.version import __version__

MEANS = ["best_error", "median_error", "last_error", "top5_error", "precision", "recall", "f1"]
MEANS += ["auc", "ece", "seconds", "step_seconds", "images_per_s", "data_wait"]


@dataclass(slots=True)
class Content:
    """Runs, cells, notes, tables and plots."""

    found: Found
    cells: list[Cell]
    notes: list[str]
    tables: list[Table]
    plots: list[plots.Plot]
    folder: Path  # of the report; links are relative to it

    def link(self, run: Run) -> str:
        """Return the URL of a run's folder relative to the report."""
        path = os.path.relpath(run.path.resolve(), self.folder)
        return quote(Path(path).as_posix()) + "/"

    def heading(self) -> str:
        """Return the line under the title."""
        count, cells = len(self.found.runs), len(self.cells)
        names = ", ".join(dict.fromkeys(cell.data for cell in self.cells)) or "no data"
        return (
            f"{count} run{'s' * (count != 1)} in {cells} cell{'s' * (cells != 1)} on {names}; "
            f"fastssl {__version__}."
        )


def build(found: Found, cells: list[Cell], out: Path) -> Content:
    """Build every note, table and plot of a report that will be written to `out`."""
    content = Content(
        found, cells, notes(found, cells), tables.build(found, cells), [], out.resolve().parent
    )
    content.plots = plots.build(cells, lambda runs: [[run.name, content.link(run)] for run in runs])
    return content


def rows(content: Content) -> list[dict[str, Any]]:
    """Return one flat row for each cell: the content of CSV and JSON."""
    bases = {cell.task: cell for cell in content.cells if cell.name == FIXMATCH}
    return [row(cell, bases.get(cell.task)) for cell in content.cells]


def row(cell: Cell, base: Cell | None) -> dict[str, Any]:
    """Return the flat row of one cell."""
    found: dict[str, Any] = {
        "data": cell.data,
        "labels": cell.labels,
        "algorithm": cell.algorithm,
        "settings": " ".join(cell.name.split()[1:]),
        "runs": len(cell.runs),
        "complete": sum(run.complete for run in cell.runs),
        "seeds": len(cell.used),
        "steps": max((run.steps for run in cell.runs), default=0),
    }
    for key in MEANS:
        value = cell.stat(key)
        found |= {key: value and value.mean, f"{key}_std": value and value.std}
    for key in ("best_error", "median_error"):
        paper, name = published_result(cell, key), f"published_{key}"
        found |= {name: paper and paper.mean, f"{name}_std": paper and paper.std}
        found[f"differs_{key}"] = tables.compared(cell, key).mark or None
    level = next((level for level in levels([base]) if level.steps), None) if base else None
    hit = reached(cell, level.accuracy) if level else None
    found |= {"steps_to_fixmatch": hit and hit.steps, "seconds_to_fixmatch": hit and hit.seconds}
    found["error_reduction"] = reduction(cell, base) if base is not cell else None
    return found
