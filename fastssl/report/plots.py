"""The plots of a report, as data; page.js draws them.

A plot has choices (tasks, or cells) of which the page shows one at a time; a choice holds its
series or bars and the runs behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastssl.report.aggregation import Stat
from fastssl.report.cells import Cell
from fastssl.report.class_plots import class_plots
from fastssl.report.curves import Value, choice, curve, rounded
from fastssl.report.load import Run, number
from fastssl.report.tables import class_names, tasks
from fastssl.sweep.grid import format_value

Plot = dict[str, Any]
Links = Callable[[list[Run]], list[list[str]]]

# The three pairs of the paper that differ by the curriculum alone.
CURRICULUM = {"flexmatch": "fixmatch", "flexuda": "uda", "flexpl": "pseudolabel"}


def build(cells: list[Cell], links: Links) -> list[Plot]:
    """Return every plot that the runs give something for."""
    made = [
        lines(cells, links, "accuracy", "Top-1 accuracy", "accuracy, %", evaluations, accuracy),
        lines(cells, links, "loss", "Training loss", "loss", training, key("loss")),
        lines(cells, links, "test-loss", "Test loss", "loss", evaluations, key("loss")),
        lines(
            cells,
            links,
            "trusted",
            "Share of pseudo-labels that are trusted",
            "trusted, %",
            training,
            percent("trusted"),
        ),
        lines(
            cells,
            links,
            "pseudo-accuracy",
            "Accuracy of the trusted pseudo-labels, where true labels are known",
            "right, %",
            training,
            percent("pseudo/accuracy"),
        ),
        *class_plots(cells, links),
        step_time(cells, links),
        ablations(cells, links),
        confusion(cells, links),
    ]
    return [plot for plot in made if plot["choices"]]


def evaluations(run: Run) -> list[dict[str, Any]]:
    """Return the lines of evaluations."""
    return run.evals


def training(run: Run) -> list[dict[str, Any]]:
    """Return the kept lines of training."""
    return run.trains


def key(name: str) -> Value:
    """Return what reads one number of a line."""
    return lambda line: number(line.get(name))


def percent(name: str) -> Value:
    """Return what reads a share of a line as percent."""
    return lambda line: None if (v := number(line.get(name))) is None else 100 * v


def accuracy(line: dict[str, Any]) -> float | None:
    """Return the accuracy of an evaluation, in percent."""
    error = number(line.get("error"))
    return None if error is None else 100 - error


def lines(
    cells: list[Cell],
    links: Links,
    id: str,
    title: str,
    unit: str,
    source: Callable[[Run], list[dict[str, Any]]],
    value: Value,
) -> Plot:
    """Return a plot with a curve a cell and a choice a task."""
    choices = []
    for task in tasks(cells):
        members = [cell for cell in cells if cell.column == task]
        found = [(cell, series) for cell in members if (series := curve(cell, source, value))]
        if found:
            runs = [run for cell, _ in found for run in (cell.used or cell.runs)]
            choices.append(choice(task, [series for _, series in found], links(runs)))
    note = "Mean over seeds; the band spans the lowest and the highest seed."
    return {
        "id": id,
        "kind": "lines",
        "by": "algorithm",
        "title": title,
        "unit": unit,
        "note": note,
        "choices": choices,
    }


def bar(name: str, value: Stat, group: str = "") -> dict[str, Any]:
    """Return one bar with its whisker."""
    return {"name": name, "y": rounded(value.mean), "err": rounded(value.std), "group": group}


def step_time(cells: list[Cell], links: Links) -> Plot:
    """Set the time of a step with the curriculum beside that without."""
    choices = []
    for task in tasks(cells):
        members = {cell.name: cell for cell in cells if cell.column == task and cell.used}
        bars, runs = [], []
        for name, cell in members.items():
            value = cell.stat("step_seconds")
            if value is None:
                continue
            group = "with CPL" if cell.algorithm in CURRICULUM else "without CPL"
            milli = Stat(1000 * value.mean, value.std and 1000 * value.std, value.n)
            bars.append((CURRICULUM.get(cell.algorithm, cell.algorithm), bar(name, milli, group)))
            runs += cell.used
        ordered = [item for _, item in sorted(bars, key=lambda pair: pair[0])]
        if ordered:
            choices.append({"name": task, "bars": ordered, "runs": links(runs)})
    return {
        "id": "step-time",
        "kind": "bars",
        "title": "Time of a step, with and without the curriculum (CPL)",
        "unit": "ms a step",
        "note": "Median over the last stretches of a run; whiskers: standard deviation over seeds.",
        "choices": choices,
    }


def ablations(cells: list[Cell], links: Links) -> Plot:
    """Show the best error by the value of one setting, all others as usual."""
    families: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.used:
            families.setdefault((cell.column, cell.algorithm), []).append(cell)
    choices = []
    for (task, algorithm), members in families.items():
        for setting in sorted({key for cell in members for key in cell.settings}):
            chosen = [cell for cell in members if set(cell.settings) <= {setting}]
            pairs = [(cell.runs[0].config.get(setting), cell) for cell in chosen]
            values = [(v, cell, s) for v, cell in pairs if (s := cell.stat("best_error"))]
            if len(values) > 1:
                values.sort(key=lambda item: (number(item[0]) or 0.0, str(item[0])))
                name = f"{task}: {algorithm}, {setting.removeprefix('algo.')}"
                bars = [bar(format_value(v), s) for v, _, s in values]
                runs = [run for _, cell, _ in values for run in cell.used]
                choices.append({"name": name, "bars": bars, "runs": links(runs)})
    return {
        "id": "ablations",
        "kind": "bars",
        "title": "Ablations: best error by one setting",
        "unit": "best error, %",
        "note": "Mean over seeds; whiskers: standard deviation. Bars begin at 0.",
        "choices": choices,
    }


def confusion(cells: list[Cell], links: Links) -> Plot:
    """Show what is taken for what; runs write it at their last evaluation, up to 100 classes."""
    choices = []
    for cell in cells:
        for run in cell.used:
            table = run.evals[-1].get("confusion")
            if isinstance(table, list) and 1 < len(table) <= 100 and square(table):
                name = f"{cell.column}: {cell.name}, {run.name}"
                names = class_names(cell, len(table))
                found = {"name": name, "table": table, "names": names, "runs": links([run])}
                choices.append(found)
    return {
        "id": "confusion",
        "kind": "heat",
        "title": "Confusion matrix",
        "unit": "share of the true class's images, %",
        "note": "Of the last evaluation. Rows: true classes; columns: guesses.",
        "choices": choices,
    }


def square(table: list[Any]) -> bool:
    """Tell whether a table has as many columns as rows, all numbers."""
    return all(
        isinstance(row, list)
        and len(row) == len(table)
        and all(number(value) is not None for value in row)
        for row in table
    )
