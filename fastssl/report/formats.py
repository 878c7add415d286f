"""A report as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json

from fastssl.report.content import Content, rows
from fastssl.report.run_metrics import run_metrics
from fastssl.report.table import Entry


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
    found = rows(content)
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
    """Return text that neither breaks a Markdown table nor becomes HTML."""
    flat = " ".join(str(text).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
