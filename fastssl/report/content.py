"""The content of a report, independent of its format."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from fastssl.report import plots, tables
from fastssl.report.cells import Cell, group
from fastssl.report.load import Found, Run, read_all
from fastssl.report.notes import notes
from fastssl.report.tables import Table
from fastssl.version import __version__


@dataclass(slots=True)
class Content:
    """Runs, cells, notes, tables and plots."""

    found: Found
    cells: list[Cell]
    notes: list[str]
    tables: list[Table]
    folder: Path  # of the report; links are relative to it
    plots: list[plots.Plot] = field(default_factory=list)

    def link(self, run: Run) -> str:
        """Return the URL of a run's folder relative to the report."""
        # As bytes: names need not be UTF-8.
        return quote(os.fsencode(os.path.relpath(run.path, self.folder))) + "/"

    def counts(self) -> str:
        """Return how many runs there are in how many cells."""
        runs, cells = len(self.found.runs), sum(bool(cell.runs) for cell in self.cells)
        return f"{runs} run{'s' * (runs != 1)} in {cells} cell{'s' * (cells != 1)}"

    def heading(self) -> str:
        """Return the line under the title."""
        names = ", ".join(dict.fromkeys(cell.data for cell in self.cells)) or "no data"
        return f"{self.counts()} on {names}; fastssl {__version__}."


def build(runs: list[Path], out: Path) -> Content:
    """Read the runs and build the content of a report that will be written to `out`."""
    found = read_all(runs)
    cells = group([*found.runs, *found.missing])
    content = Content(found, cells, notes(found, cells), tables.build(cells), out.resolve().parent)
    content.plots = plots.build(cells, content.link)
    return content
