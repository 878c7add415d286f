"""Plots with a curve a class: accuracy, thresholds, marks, and the quality of pseudo-labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastssl.report.cells import Cell
from fastssl.report.curves import KEPT_BY_CLASS, Value, choice, curve, shared_steps
from fastssl.report.load import Run, number
from fastssl.report.tables import class_means, class_names

SHOWN = 12  # classes in one plot: the six worst and the six best where there are more
Links = Callable[[list[Run]], list[list[str]]]

# id, title, unit, factor, lines of evaluations or of training, the way to the list in a line
PLOTS: list[tuple[str, str, str, float, bool, tuple[str, ...]]] = [
    (
        "class-accuracy",
        "Accuracy by class",
        "accuracy, %",
        100,
        True,
        ("class_accuracy",),
    ),
    (
        "thresholds",
        "Thresholds T(c) by class",
        "threshold",
        1,
        True,
        ("tables", "thresholds"),
    ),
    (
        "marks",
        "Marks by class: unlabelled images whose last sure guess was this class",
        "images",
        1,
        True,
        ("tables", "counts"),
    ),
    (
        "class-coverage",
        "Share of unlabelled images that are trusted, by true class",
        "trusted, %",
        100,
        False,
        ("pseudo_class_coverage",),
    ),
    (
        "class-pseudo-accuracy",
        "Accuracy of the trusted pseudo-labels, by true class",
        "right, %",
        100,
        False,
        ("pseudo_class_accuracy",),
    ),
]


def class_plots(cells: list[Cell], links: Links) -> list[dict[str, Any]]:
    """Return the plots that have a curve a class, with a choice a cell."""
    made = []
    for id, title, unit, factor, evaluated, way in PLOTS:
        choices = []
        for cell in cells:
            series = class_series(cell, factor, evaluated, way)
            if series:
                name = f"{cell.column}: {cell.name}"
                found = choice(name, series, links(cell.used or cell.runs))
                choices.append({**found, "note": remark(cell)})
        made.append(
            {
                "id": id,
                "kind": "lines",
                "by": "class",
                "title": title,
                "unit": unit,
                "note": "Mean over seeds.",
                "choices": choices,
            }
        )
    return made


def remark(cell: Cell) -> str:
    """Say which classes are shown where not all are."""
    count, half = len(class_means(cell)), SHOWN // 2
    if count <= SHOWN:
        return ""
    return f"Of {count:,} classes, the {half} worst and the {half} best at the best evaluation."


def class_series(
    cell: Cell, factor: float, evaluated: bool, way: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return a curve for each class that is shown, and one for images without a mark."""
    runs = cell.used or cell.runs
    sample = next((row for run in runs for row in lists(run, evaluated, way)), [])
    accuracies = class_means(cell)
    classes = len(accuracies) or len(sample)
    names = class_names(cell, classes)
    shown = choose(accuracies, classes)
    if way[-1] == "counts" and len(sample) == classes + 1:
        shown, names = [*shown, classes], [*names, "no mark yet"]
    kept = thinned(runs, evaluated)
    found = []
    for c in shown:
        series = curve(cell, lambda run: kept[run.name], reader(way, c, factor), band=False)
        if series:
            found.append({**series, "name": names[c]})
    return found


def choose(accuracies: list[Any], classes: int) -> list[int]:
    """Return the classes to show."""
    if classes <= SHOWN:
        return list(range(classes))
    ranked = sorted(range(classes), key=lambda c: score(accuracies, c))
    return sorted([*ranked[: SHOWN // 2], *ranked[-SHOWN // 2 :]])


def score(accuracies: list[Any], c: int) -> float:
    """Return the accuracy of a class, 0 where it is not known."""
    return accuracies[c].mean if c < len(accuracies) and accuracies[c] else 0.0


def source(evaluated: bool) -> Callable[[Run], list[dict[str, Any]]]:
    """Return what gives the lines of a run."""
    return lambda run: run.evals if evaluated else run.trains


def thinned(runs: list[Run], evaluated: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each run that a curve will show: a dozen curves need no more."""
    lines = {run.name: source(evaluated)(run) for run in runs}
    tracks = [{line["step"]: line for line in found} for found in lines.values() if found]
    steps = set(shared_steps(tracks, KEPT_BY_CLASS)) if tracks else set()
    return {
        name: [line for line in found if line["step"] in steps] for name, found in lines.items()
    }


def lists(run: Run, evaluated: bool, way: tuple[str, ...]) -> list[list[Any]]:
    """Return the lists that lie at the end of the way, one a line."""
    found = [follow(line, way) for line in source(evaluated)(run)]
    return [row for row in found if isinstance(row, list)]


def follow(line: dict[str, Any], way: tuple[str, ...]) -> Any:
    """Return what lies at the end of a way of keys."""
    item: Any = line
    for key in way:
        item = item.get(key) if isinstance(item, dict) else None
    return item


def reader(way: tuple[str, ...], c: int, factor: float) -> Value:
    """Return what reads the value of one class."""

    def read(line: dict[str, Any]) -> float | None:
        row = follow(line, way)
        value = number(row[c]) if isinstance(row, list) and c < len(row) else None
        return None if value is None else factor * value

    return read
