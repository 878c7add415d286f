"""Label Studio's export: JSON, a list of tasks with their annotations, or the shorter JSON-MIN."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipelines.errors import DataError
from pipelines.files import read_json

LARGEST = 2**28  # bytes
NAMES = ("label", "choice")  # of the choice in JSON-MIN: as `choose` calls it, and as the template


def read_tasks(file: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield path and label of every task; a task without an annotation has the label ''.

    `folder` is that of the images.
    """
    tasks = read_json(file, LARGEST)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{file} is not a list of tasks", "export it from Label Studio as JSON")
    for number, task in enumerate(tasks, 1):
        path, labels = _path(task.get("data", task), folder), set(_labels(task))
        if path is None or len(labels) > 1 or not all(isinstance(one, str) for one in labels):
            raise DataError(
                f"{file}: task {number} has no path, or several labels",
                "give each image one label in Label Studio, and export the tasks as JSON",
            )
        yield path, labels.pop() if labels else ""


def _path(data: Any, folder: Path) -> str | None:
    """Return the path that `choose` wrote, or that of an image served from local files."""
    found = data.get("path") if isinstance(data, dict) else None
    if found is None and isinstance(data, dict):
        query = urlsplit(str(data.get("image"))).query
        served = parse_qs(query, errors="surrogateescape").get("d", [""])[0].lstrip("/")
        found = _served(served, folder) if served else None
    return found if isinstance(found, str) and found else None


def _served(path: str, folder: Path) -> str:
    """Return the image that Label Studio names relative to its document root.

    Its tasks do not name the root: it is the folder above that of the images, as `choose` writes
    them, or another one.
    """
    candidates = [os.path.join(root, path) for root in (folder.parent, folder, *folder.parents[1:])]
    return next(filter(os.path.isfile, candidates), candidates[0])


def _labels(task: dict[str, Any]) -> Iterator[Any]:
    if "data" not in task:  # JSON-MIN
        for name in NAMES:
            value = task.get(name)
            yield from value["choices"] if isinstance(value, dict) else [value] if value else []
        return
    for annotation in task.get("annotations") or ():
        if not annotation.get("was_cancelled"):
            for result in annotation.get("result") or ():
                yield from result.get("value", {}).get("choices", ())
