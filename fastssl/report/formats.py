"""A report as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json

from fastssl.report.aggregation import figures
from fastssl.report.content import Content, rows
from fastssl.report.tables import Entry


def as_json(content: Content) -> str:
    """Return one object: cells, runs, notes."""
    runs = [
        {"run": run.name, "folder": content.link(run), "status": run.status, **figures(run)}
        | {key: run.config.get(key) for key in ("data", "labels", "algorithm", "seed")}
        for run in content.found.runs
    ]
    whole = {"cells": rows(content), "runs": runs, "notes": content.notes}
    return json.dumps(whole, indent=2) + "\n"


def as_csv(content: Content) -> str:
    """Return one line a cell."""
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
    words = [entry.text, f"({entry.below})" if entry.below else "", f"**{entry.mark}**"]
    return escape(" ".join(words[: 3 if entry.mark else 2]).strip())


def escape(text: str) -> str:
    """Keep names from breaking a table or becoming HTML."""
    flat = " ".join(str(text).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
