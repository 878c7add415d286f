"""Published results as data: one YAML file per paper, with the table that each number is from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """A published number; `std` is None if the paper gives no spread."""

    mean: float
    std: float | None
    where: str


@cache
def paper(name: str = "flexmatch") -> dict[str, Any]:
    """Return the results of one paper."""
    found = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def find(
    metric: str, algorithm: str, data: str, labels: object, settings: dict[str, Any] | None = None
) -> PublishedResult | None:
    """Return the published result of one cell; `settings` are those that are not the default."""
    for table in paper()[metric]:
        if table.get("settings", {}) != (settings or {}):
            continue
        row = table["values"].get(algorithm, {})
        # A fully supervised run uses every label: its one value belongs to the dataset.
        value = row.get(f"{data}-{labels}", row.get(data))
        if value is None:
            continue
        mean, std = value if isinstance(value, list) else (value, None)
        where = table["table"]
        where = where if isinstance(where, str) else f"table {where}"
        return PublishedResult(float(mean), None if std is None else float(std), where)
    return None


def class_accuracy(algorithm: str, data: str, labels: object) -> list[float] | None:
    """Return the published accuracy of every class, or None."""
    for table in paper()["class_accuracy"]:
        found = table["values"].get(algorithm, {}).get(f"{data}-{labels}")
        if found:
            return [float(value) for value in found]
    return None


def claim(name: str, algorithm: str, data: str, labels: object) -> float | None:
    """Return a number from the text of the paper, such as a relative error reduction."""
    found = paper()["claims"][name]["values"].get(algorithm, {}).get(f"{data}-{labels}")
    return None if found is None else float(found)
