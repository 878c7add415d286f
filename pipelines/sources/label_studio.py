"""Label Studio's export: JSON, a list of tasks with their annotations, or the shorter JSON-MIN."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipelines.errors import DataError
from pipelines.files import read_json

LARGEST = 2**28  # bytes
NAMES = ("label", "choice")  # of the choice in JSON-MIN: as `choose` calls it, and as the template


def read_tasks(file: Path) -> Iterator[tuple[str, str]]:
    """Yield path and label of every task; a task without an annotation has the label ''."""
    tasks = read_json(file, LARGEST)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{file} is not a list of tasks", "export it from Label Studio as JSON")
    for number, task in enumerate(tasks, 1):
        path, labels = _path(task.get("data", task)), set(_labels(task))
        if path is None or len(labels) > 1 or not all(isinstance(one, str) for one in labels):
            raise DataError(
                f"{file}: task {number} has no path, or several labels",
                "give each image one label in Label Studio, and export the tasks as JSON",
            )
        yield path, labels.pop() if labels else ""


def _path(data: Any) -> str | None:
    """Return the path that `choose` wrote, or that of an image served from local files."""
    found = data.get("path") if isinstance(data, dict) else None
    if found is None and isinstance(data, dict):
        found = parse_qs(urlsplit(str(data.get("image"))).query).get("d", [None])[0]
    return found if isinstance(found, str) and found else None


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
