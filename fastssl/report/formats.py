"""A report as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

from fastssl.report.cells import Cell, by_task
from fastssl.report.compare import baseline, levels, published_result, reached, reduction
from fastssl.report.content import Content
from fastssl.report.run_metrics import run_metrics
from fastssl.report.tables import Entry, compared
from pipelines.text import for_csv, for_terminal

MEANS = ["best_error", "median_error", "last_error", "top5_error", "precision", "recall", "f1"]
MEANS += ["auc", "ece", "seconds", "step_seconds", "images_per_s", "data_wait"]


def rows(content: Content) -> list[dict[str, Any]]:
    """Return one flat row for each cell: the content of CSV and JSON."""
    bases = {task: baseline(cells) for task, cells in by_task(content.cells).items()}
    return [row(cell, bases[cell.task]) for cell in content.cells if cell.runs]


def row(cell: Cell, base: Cell | None) -> dict[str, Any]:
    """Return the flat row of one cell."""
    found: dict[str, Any] = {
        "data": cell.data,
        "source": for_terminal(cell.source),
        "labels": cell.labels,
        "algorithm": cell.algorithm,
        "settings": " ".join(cell.name.split()[1:]),
        "runs": len(cell.runs),
        "complete": sum(run.complete for run in cell.runs),
        "seeds": len(cell.used),
        "steps": max(run.steps for run in cell.runs),
    }
    for key in MEANS:
        value = cell.stat(key)
        found |= {key: value and value.mean, f"{key}_std": value and value.std}
    for key in ("best_error", "median_error"):
        paper, name = published_result(cell, key), f"published_{key}"
        found |= {name: paper and paper.mean, f"{name}_std": paper and paper.std}
        found[f"differs_{key}"] = compared(cell, key).mark or None
    level = next((level for level in levels([base]) if level.steps), None) if base else None
    steps, time = reached(cell, level.accuracy) if level else (None, None)
    found |= {"steps_to_fixmatch": steps and steps.mean, "seconds_to_fixmatch": time and time.mean}
    found["error_reduction"] = reduction(cell, base) if base is not cell else None
    return found


def as_json(content: Content) -> str:
    """Return one JSON object: cells, runs and notes."""
    runs = [
        {"run": run.name, "folder": content.link(run), "status": run.status, **run_metrics(run)}
        | {key: run.config.get(key) for key in ("data", "labels", "algorithm", "seed")}
        for run in content.found.runs
    ]
    whole = {"cells": rows(content), "runs": runs, "notes": content.notes}
    return json.dumps(whole, indent=2) + "\n"


def as_csv(content: Content) -> str:
    """Return one line for each cell."""
    found = [
        {key: for_csv(value) if isinstance(value, str) else value for key, value in line.items()}
        for line in rows(content)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]) if found else ["data"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def as_markdown(content: Content) -> str:
    """Return the notes and every table."""
    parts = ["# Report", escape(content.heading())]
    if content.notes:
        parts.append("\n".join(f"- {escape(note)}" for note in content.notes))
    for table in content.tables:
        lines = [
            f"| {' | '.join(map(escape, table.columns))} |",
            "|" + "---|" * len(table.columns),
            *[f"| {' | '.join(map(cell_text, row))} |" for row in table.rows],
        ]
        parts += [f"## {escape(table.title)}", escape(table.note), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def cell_text(entry: Entry) -> str:
    """Return an entry on one line."""
    texts = [entry.text, entry.below and f"({entry.below})", entry.mark and f"**{entry.mark}**"]
    return escape(" ".join(texts).strip())


def escape(text: str) -> str:
    """Return text that neither breaks a Markdown table nor becomes HTML, a link or an image."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\`|\[\]]", r"\\\g<0>", flat)
