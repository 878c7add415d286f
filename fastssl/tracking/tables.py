"""Tables on stdout: aligned text for people, JSON for programs."""

from __future__ import annotations

import json
from typing import Any

from pipelines.text import for_terminal


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table with a heading, or as one JSON list."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print("nothing to show")
        return
    names = list(rows[0])
    cells = [[text(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    for line in [names, *cells]:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


def text(value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value)
    return for_terminal(str(value))
