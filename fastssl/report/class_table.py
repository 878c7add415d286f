"""The accuracy of every class, and the names of the classes."""

from __future__ import annotations

from fastssl.report import published
from fastssl.report.cells import Cell
from fastssl.report.run_metrics import Stat, class_accuracy, stat
from fastssl.report.table import Entry, Table, make_table, mean_std

CLASSES = 30  # rows of the table; with more classes the worst and the best are shown


def class_table(cells: list[Cell], task: str) -> Table:
    """Return the accuracy of every class, or of the worst and best if there are many."""
    members = [cell for cell in cells if cell.task == task and cell.used]
    means = {cell.name: class_means(cell) for cell in members}
    count = max((len(row) for row in means.values()), default=0)
    names = class_names(members[0], count) if members else []
    table = make_table("classes", ["class", *means], [], task)
    shown = list(range(count))
    if count > CLASSES:
        half = CLASSES // 2
        ranked = sorted(shown, key=lambda c: average(means, c))
        shown = [*ranked[:half], *ranked[-half:]]
        table.note += f" {count:,} classes: the {half} worst and the {half} best are shown."
    for c in shown:
        row = [Entry(names[c])]
        for cell in members:
            values = means[cell.name]
            known = published.class_accuracy(cell.algorithm, cell.data, cell.labels)
            paper = f"paper {100 * known[c]:.1f}" if known and not cell.unusual else ""
            row.append(Entry(mean_std(values[c], 1, 100) if c < len(values) else "-", paper))
        table.rows.append(row)
    return table


def class_means(cell: Cell) -> list[Stat | None]:
    """Return mean and deviation of the accuracy of each class."""
    rows = [row for row in map(class_accuracy, cell.used) if row]  # [runs][classes]
    return [stat(values) for values in zip(*rows, strict=False)]


def average(means: dict[str, list[Stat | None]], c: int) -> float:
    """Return the mean accuracy of a class over all algorithms."""
    # row[c:c+1] is empty where a run has fewer classes.
    found = stat(mean.mean for row in means.values() for mean in row[c : c + 1] if mean)
    return found.mean if found else 0.0


def class_names(cell: Cell, count: int) -> list[str]:
    """Return the names of the classes: the run's own, those of the data set, or numbers."""
    from pipelines.datasets import DATASETS

    known = [run.environment.get("class_names") for run in cell.runs]
    known.append(DATASETS[cell.data].class_names if cell.data in DATASETS else None)
    for names in known:
        if isinstance(names, list | tuple) and len(names) == count:
            return [str(name) for name in names]
    return [str(c) for c in range(count)]
