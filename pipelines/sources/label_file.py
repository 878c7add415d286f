"""Lists of images: CSV files of path,label, or the JSON that Label Studio exports.

The heading of a CSV file may name more columns, such as `source`.
"""

import csv
import os
from pathlib import Path
from typing import NamedTuple

from pipelines.errors import DataError
from pipelines.sources.label_studio import read_tasks
from pipelines.text import for_terminal, from_csv

PSEUDO = "pseudo"  # in the column `source`, as `fastssl label` writes it


class Listed(NamedTuple):
    """What a list says about an image."""

    label: str  # empty: none
    pseudo: bool  # True if a model chose the label


def read_list(file: Path, folder: Path) -> dict[str, Listed]:
    """Return the images of a list by their absolute paths, which may be relative to `folder`."""
    listed: dict[str, Listed] = {}
    if file.exists() and not file.is_file():  # reading a pipe or a device may never end
        raise DataError(f"{file} is not a regular file", "write the list into a file")
    try:
        if file.suffix.lower() == ".json":
            for number, (path, label) in enumerate(read_tasks(file, folder), 1):
                cells = {"path": path, "label": label}
                _add(listed, cells, folder, f"{file}, task {number}")
        else:
            _read_csv(file, folder, listed)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{file} cannot be read: {reason}", "look at its name and content"
        ) from None
    if not any(one.label for one in listed.values()):
        raise DataError(f"{file} lists no label", "write lines of path,label")
    return listed


def _read_csv(file: Path, folder: Path, listed: dict[str, Listed]) -> None:
    heading = ["path", "label"]
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        for line, row in enumerate(csv.reader(text), 1):
            cells = [from_csv(cell.strip()) for cell in row]
            if line == 1 and cells[:2] == heading:
                heading = cells
            elif cells and len(cells) != len(heading):
                raise DataError(
                    f"{file}, line {line}: {len(cells)} columns, not {','.join(heading)}",
                    "separate one path and one label a line by a comma, and quote names that "
                    "hold a comma",
                )
            elif cells:
                named = dict(zip(heading, cells, strict=True))
                _add(listed, named, folder, f"{file}, line {line}")


def _add(listed: dict[str, Listed], cells: dict[str, str], folder: Path, where: str) -> None:
    path, label = _absolute(cells["path"], folder), cells["label"]
    before = listed.get(path, Listed("", pseudo=True))
    if before.label and label and before.label != label:
        raise DataError(
            f"{where}: {for_terminal(path)} is {label!r} here and {before.label!r} above",
            "keep one of the two lines",
        )
    pseudo = before.pseudo and cells.get("source") == PSEUDO
    listed[path] = Listed(label or before.label, pseudo)


def _absolute(path: str, folder: Path) -> str:
    """Return one name for each image, however its path is written."""
    path = os.path.normpath(os.path.join(folder, path))
    if not path.startswith(f"{folder}{os.sep}"):
        # An absolute path may lead to the folder by another name, such as a link's.
        inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
        if inside.split(os.sep)[0] != os.pardir:
            return os.path.join(folder, inside)
    return path
