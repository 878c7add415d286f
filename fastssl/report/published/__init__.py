"""What was published, as data: one YAML a paper, with the table each figure stands in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
METRICS = ("best_error", "median_error", "top5_error", "precision", "recall", "f1", "auc")


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number; `std` is None where the paper gives no spread."""

    mean: float
    std: float | None
    where: str


@cache
def paper(name: str = "flexmatch") -> dict[str, Any]:
    """Return everything known of one paper."""
    found = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def figure(
    metric: str, algorithm: str, data: str, labels: object, settings: dict[str, Any] | None = None
) -> Figure | None:
    """Return the published figure of one cell; `settings` are those that are not the default."""
    for table in paper()[metric]:
        if table.get("settings", {}) != (settings or {}):
            continue
        row = table["values"].get(algorithm, {})
        # a fully supervised run sees every label, so its one value belongs to the data set
        value = row.get(f"{data}-{labels}", row.get(data))
        if value is None:
            continue
        mean, std = value if isinstance(value, list) else (value, None)
        place = table["table"]
        where = place if isinstance(place, str) else f"table {place}"
        return Figure(float(mean), None if std is None else float(std), where)
    return None


def class_accuracy(algorithm: str, data: str, labels: object) -> list[float] | None:
    """Return the published accuracy of every class, or None."""
    for table in paper()["class_accuracy"]:
        found = table["values"].get(algorithm, {}).get(f"{data}-{labels}")
        if found:
            return [float(value) for value in found]
    return None


def claim(name: str, algorithm: str, data: str, labels: object) -> float | None:
    """Return what the paper says in words, such as a relative error reduction."""
    found = paper()["claims"][name]["values"].get(algorithm, {}).get(f"{data}-{labels}")
    return None if found is None else float(found)
