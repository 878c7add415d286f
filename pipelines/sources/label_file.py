"""A list of labels: a CSV file of path,label; a heading may name more columns, passed by."""

import csv
import os
from pathlib import Path

from pipelines.errors import DataError
from pipelines.store.index import escape


def read_labels(file: Path) -> dict[str, str]:
    """Read path → label; a first line `path,label,…` is a heading, an empty label is none."""
    labels: dict[str, str] = {}
    columns = 2
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            for line, row in enumerate(csv.reader(text), 1):
                if line == 1 and [cell.strip() for cell in row[:2]] == ["path", "label"]:
                    columns = len(row)
                    continue
                if not row:
                    continue
                if len(row) != columns:
                    raise DataError(
                        f"{file}, line {line}: {len(row)} columns, not {_columns(columns)}",
                        "write one path and one label a line, quoted if they hold a comma",
                    )
                _take(labels, os.path.normpath(row[0].strip()), row[1].strip(), file, line)
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file} cannot be read: {reason}", "look at --labels") from None
    if not labels:
        raise DataError(f"{file} lists no label", "write lines of path,label")
    return labels


def _columns(count: int) -> str:
    return "path,label" if count == 2 else f"the {count} of the heading"


def _take(labels: dict[str, str], path: str, label: str, file: Path, line: int) -> None:
    if not label:
        return
    if labels.setdefault(path, label) != label:
        raise DataError(
            f"{file}, line {line}: {escape(path)} is {label!r} here and {labels[path]!r} above",
            "keep one of the two lines",
        )
