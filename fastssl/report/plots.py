"""The plots of a report, as data; page.js draws them as SVG.

A plot has choices (tasks or cells), of which the page shows one at a time. A choice holds curves,
bars or a matrix, and links to the runs behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastssl.report.cells import Cell
from fastssl.report.class_table import class_means, class_names
from fastssl.report.curves import Series, curve, rounded
from fastssl.report.load import Run
from fastssl.report.records import MetricsLine, number
from fastssl.report.run_metrics import Stat
from fastssl.report.table import TEXTS
from fastssl.report.tables import tasks
from fastssl.sweep.grid import format_value

SHOWN = 12  # classes in one plot; with more, the six worst and the six best are shown
# The three pairs of the paper that differ by the curriculum alone.
CURRICULUM = {"flexmatch": "fixmatch", "flexuda": "uda", "flexpl": "pseudolabel"}

Choice = dict[str, Any]
Links = Callable[[list[Run]], list[list[str]]]  # runs → [name, address] of each


@dataclass(slots=True)
class Plot:
    """A plot and its choices, as page.js reads it; texts.yaml lists all plots."""

    id: str
    by: str  # what it compares; curves of one name have one color in plots with the same `by`
    title: str
    unit: str
    note: str = ""
    kind: str = "lines"  # lines, bars or heat
    lines: str = ""  # for curves, "evals" or "trains": the lines of a run
    metric: str = ""  # of MetricsLine: a number, or a list with a number for each class
    scale: float = 1
    choices: list[Choice] = field(default_factory=list)

    def lines_of(self, run: Run) -> list[MetricsLine]:
        """Return the lines of a run that the plot shows."""
        found: list[MetricsLine] = getattr(run, self.lines)
        return found

    def value(self, line: MetricsLine, c: int | None = None) -> float | None:
        """Return the value of a line, or of class c in it."""
        found = getattr(line, self.metric)
        if c is not None:
            found = found[c] if c < len(found) else None
        return None if found is None else self.scale * found


def build(cells: list[Cell], links: Links) -> list[Plot]:
    """Return every plot that has a choice."""
    plots = [Plot(**content) for content in TEXTS["plots"]]
    for plot in plots:
        plot.choices = CHOICES[plot.by](plot, cells, links)
    return [plot for plot in plots if plot.choices]


def curves_by_algorithm(plot: Plot, cells: list[Cell], links: Links) -> list[Choice]:
    """Return a choice for each task, with a curve for each cell."""
    plot.note = "Mean over seeds; the band spans the lowest and the highest seed."
    choices = []
    for task in tasks(cells):
        members = [cell for cell in cells if cell.task == task]
        found = [(cell, curve(cell, plot.lines_of, plot.value)) for cell in members]
        drawn = [(cell, series) for cell, series in found if series]
        if drawn:
            runs = [run for cell, _ in drawn for run in cell.used or cell.runs]
            choices.append(line_choice(task, [series for _, series in drawn], links(runs)))
    return choices


def curves_by_class(plot: Plot, cells: list[Cell], links: Links) -> list[Choice]:
    """Return a choice for each cell, with a curve for each class."""
    plot.note = "Mean over seeds."
    choices = []
    for cell in cells:
        series = class_series(plot, cell)
        if series:
            count, half = len(class_means(cell)), SHOWN // 2
            note = f"the {half} worst and the {half} best at the best evaluation"
            choice = line_choice(cell.full_name, series, links(cell.used or cell.runs))
            choice["note"] = f"Of {count:,} classes, {note}." if count > SHOWN else ""
            choices.append(choice)
    return choices


def class_series(plot: Plot, cell: Cell) -> list[Series]:
    """Return a curve for each class that is shown."""
    lines = [line for run in cell.used or cell.runs for line in plot.lines_of(run)]
    width = next((len(found) for line in lines if (found := getattr(line, plot.metric))), 0)
    accuracies = [accuracy.mean if accuracy else 0.0 for accuracy in class_means(cell)]
    count = len(accuracies) or width
    shown, names = list(range(count)), class_names(cell, count)
    if count > SHOWN:
        ranked = sorted(shown, key=accuracies.__getitem__) if accuracies else shown
        shown = sorted([*ranked[: SHOWN // 2], *ranked[-SHOWN // 2 :]])
    if plot.metric == "counts" and width == count + 1:
        # The last count is that of the images without a confident pseudo-label so far.
        shown, names = [*shown, count], [*names, "none yet"]
    found = []
    for c in shown:
        series = curve(cell, plot.lines_of, partial(plot.value, c=c), band=False)
        if series:
            found.append({**series, "name": names[c]})
    return found


def line_choice(name: str, series: list[Series], runs: list[list[str]]) -> Choice:
    """Return a choice of a plot; steps and times that all curves share are stored once."""
    first = series[0]
    found: Choice = {"name": name, "runs": runs, "series": series}
    if all(item["x"] == first["x"] and item["t"] == first["t"] for item in series):
        found |= {"x": first["x"], "t": first["t"]}
        found["series"] = [{k: v for k, v in item.items() if k not in "xt"} for item in series]
    return found


def bar(name: str, value: Stat, group: str = "", scale: float = 1) -> dict[str, Any]:
    """Return one bar with its whisker."""
    whisker = None if value.std is None else rounded(scale * value.std)
    return {"name": name, "y": rounded(scale * value.mean), "err": whisker, "group": group}


def step_time(plot: Plot, cells: list[Cell], links: Links) -> list[Choice]:
    """Return the time of a step of every cell, pairs with and without curriculum side by side."""
    choices = []
    for task in tasks(cells):
        members = [cell for cell in cells if cell.task == task]
        timed = [(cell, value) for cell in members if (value := cell.stat("step_seconds"))]
        timed.sort(key=lambda pair: CURRICULUM.get(pair[0].algorithm, pair[0].algorithm))
        bars = [
            bar(c.name, value, f"with{'' if c.algorithm in CURRICULUM else 'out'} CPL", 1000)
            for c, value in timed
        ]
        if bars:
            runs = [run for cell, _ in timed for run in cell.used]
            choices.append({"name": task, "bars": bars, "runs": links(runs)})
    return choices


def ablations(plot: Plot, cells: list[Cell], links: Links) -> list[Choice]:
    """Return the best error by the value of one setting, with all others at their usual value."""
    choices = []
    families: dict[str, list[Cell]] = {}
    for cell in cells:
        families.setdefault(f"{cell.task}: {cell.algorithm}", []).append(cell)
    for family, members in families.items():
        for setting in sorted({key for cell in members if cell.used for key in cell.settings}):
            found = [
                (cell.runs[0].config.get(setting), cell, value)
                for cell in members
                if set(cell.settings) <= {setting} and (value := cell.stat("best_error"))
            ]
            if len(found) > 1:
                found.sort(key=lambda item: (number(item[0]) or 0.0, str(item[0])))
                name = f"{family}, {setting.removeprefix('algo.')}"
                bars = [bar(format_value(key), value) for key, _, value in found]
                runs = [run for _, cell, _ in found for run in cell.used]
                choices.append({"name": name, "bars": bars, "runs": links(runs)})
    return choices


def confusion(plot: Plot, cells: list[Cell], links: Links) -> list[Choice]:
    """Return the confusion matrix of every run with 2 to 100 classes."""
    choices = []
    for cell in cells:
        for run in cell.used:
            table = run.evals[-1].confusion
            if table and 1 < len(table) <= 100:
                choice = {"name": f"{cell.full_name}, {run.name}", "table": table}
                choice |= {"names": class_names(cell, len(table)), "runs": links([run])}
                choices.append(choice)
    return choices


CHOICES: dict[str, Callable[[Plot, list[Cell], Links], list[Choice]]] = {
    "algorithm": curves_by_algorithm,
    "class": curves_by_class,
    "curriculum": step_time,
    "setting": ablations,
    "run": confusion,
}
