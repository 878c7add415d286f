"""A table as data, and how a mean and its deviation are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fastssl.report.load import Run
from fastssl.report.run_metrics import Stat

TEXTS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a table: our result, a smaller line below it, and a mark."""

    text: str
    below: str = ""  # the published result, or the time that belongs to a number of steps
    mark: str = ""  # "better" or "worse" if they differ by more than two deviations
    run: Run | None = None  # what the entry links to


@dataclass(slots=True)
class Table:
    """A table with its title and a note on how to read it."""

    id: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Entry]]


def make_table(name: str, columns: list[str], rows: list[list[Entry]], task: str = "") -> Table:
    """Return a table with the title and note of texts.yaml; one of several names its task."""
    text = TEXTS["tables"][name]
    id, title = (f"{name}-{task}", f"{text['title']}: {task}") if task else (name, text["title"])
    return Table(id, title, text["note"], columns, rows)


def mean_std(value: Stat | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return "mean ± deviation" or a dash."""
    if value is None:
        return "-"
    text = f"{scale * value.mean:,.{digits}f}"
    return text if value.std is None else f"{text} ± {scale * value.std:.{digits}f}"
