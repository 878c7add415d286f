"""The plots of a report, as data; page.js draws them as SVG.

A plot has choices (tasks or cells), of which the page shows one at a time. A choice holds curves,
bars or a matrix, and links to the runs behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastssl.report.cells import Cell, by_task, worst_and_best
from fastssl.report.load import Run
from fastssl.report.records import number
from fastssl.report.run_metrics import Stat, stat
from fastssl.report.tables import TEXTS
from fastssl.sweep.grid import format_value

SHOWN = 12  # classes in one plot; with more, the six worst and the six best are shown
# The three pairs of the paper that differ by the curriculum alone.
CURRICULUM = {"flexmatch": "fixmatch", "flexuda": "uda", "flexpl": "pseudolabel"}

POINTS = 200  # of one curve
POINTS_BY_CLASS = 100  # of one among a dozen

Choice = dict[str, Any]
Series = dict[str, Any]


@dataclass(slots=True)
class Plot:
    """A plot and its choices, as page.js reads it; texts.yaml lists all plots."""

    id: str
    by: str  # what it compares; curves of one name have one color in plots with the same `by`
    title: str
    unit: str
    note: str
    kind: str = "lines"  # lines, bars or heat
    lines: str = ""  # for curves, "evals" or "trains": the lines of a run
    metric: str = ""  # of MetricsLine: a number, or a list with a number for each class
    scale: float = 1
    choices: list[Choice] = field(default_factory=list)


def build(cells: list[Cell], link: Callable[[Run], str]) -> list[Plot]:
    """Return every plot that has a choice; `link` returns the address of a run."""
    plots = [Plot(**content) for content in TEXTS["plots"]]
    for plot in plots:
        for choice in CHOICES[plot.by](plot, cells):
            choice["runs"] = [[run.name, link(run)] for run in choice["runs"]]
            plot.choices.append(choice)
    return [plot for plot in plots if plot.choices]


def curves_by_algorithm(plot: Plot, cells: list[Cell]) -> Iterator[Choice]:
    """Yield a choice for each task, with a curve for each cell."""
    for task, members in by_task(cells).items():
        found = [(c, curve(c, plot.lines, plot.metric, scale=plot.scale)) for c in members]
        drawn = [(cell, series) for cell, series in found if series]
        if drawn:
            runs = [run for cell, _ in drawn for run in cell.used or cell.runs]
            yield line_choice(task, [series for _, series in drawn], runs)


def curves_by_class(plot: Plot, cells: list[Cell]) -> Iterator[Choice]:
    """Yield a choice for each cell, with a curve for each class."""
    for cell in cells:
        series = class_series(plot, cell)
        if series:
            count, half = len(cell.class_means), SHOWN // 2
            note = f"the {half} worst and the {half} best at the best evaluation"
            choice = line_choice(cell.full_name, series, cell.used or cell.runs)
            choice["note"] = f"Of {count:,} classes, {note}." if count > SHOWN else ""
            yield choice


def class_series(plot: Plot, cell: Cell) -> list[Series]:
    """Return a curve for each class that is shown."""
    lines = [line for run in cell.used or cell.runs for line in getattr(run, plot.lines)]
    width = next((len(found) for line in lines if (found := getattr(line, plot.metric))), 0)
    accuracies = [mean.mean if mean else 0.0 for mean in cell.class_means] or [0.0] * width
    count = len(accuracies)
    shown, names = sorted(worst_and_best(accuracies, SHOWN)), cell.class_names(count)
    if plot.metric == "counts" and width == count + 1:
        # The last count is that of the images without a confident pseudo-label so far.
        shown, names = [*shown, count], [*names, "none yet"]
    found = [curve(cell, plot.lines, plot.metric, scale=plot.scale, c=c) for c in shown]
    return [{**series, "name": names[c]} for c, series in zip(shown, found, strict=True) if series]


def line_choice(name: str, series: list[Series], runs: list[Run]) -> Choice:
    """Return a choice of a plot; steps and times that all curves share are stored once."""
    first = series[0]
    found: Choice = {"name": name, "runs": runs, "series": series}
    if all(item["x"] == first["x"] and item["t"] == first["t"] for item in series):
        found |= {"x": first["x"], "t": first["t"]}
        found["series"] = [{k: v for k, v in item.items() if k not in "xt"} for item in series]
    return found


def curve(
    cell: Cell, lines: str, metric: str, *, scale: float = 1, c: int | None = None
) -> Series | None:
    """Return a metric, or that of class c, by step: the mean, lowest and highest over seeds.

    `lines` is "evals" or "trains". The curve of a class has no lowest and highest.
    """
    tracks = []
    for run in cell.used or cell.runs:
        found = [(line, getattr(line, metric)) for line in getattr(run, lines)]
        if c is not None:
            found = [(line, values[c]) for line, values in found if c < len(values)]
        known = [(line, scale * y) for line, y in found if y is not None]
        if known:
            tracks.append({line.step: (y, line.seconds) for line, y in known})
    if not tracks:
        return None
    steps = shared_steps(tracks, POINTS if c is None else POINTS_BY_CLASS)
    points = [[track[step] for track in tracks if step in track] for step in steps]
    values = [[y for y, _ in rows] for rows in points]
    times = [stat(seconds for _, seconds in rows) for rows in points]
    series: Series = {
        "name": cell.name,
        "x": steps,
        "t": [time and rounded(time.mean) for time in times],
        "y": [rounded(sum(ys) / len(ys)) for ys in values],
    }
    if c is None and len(tracks) > 1:
        series["lo"] = [rounded(min(ys)) for ys in values]
        series["hi"] = [rounded(max(ys)) for ys in values]
    return series


def shared_steps(tracks: list[dict[int, Any]], count: int) -> list[int]:
    """Return the steps at which every run that got so far has a value, at most `count` of them.

    A mean over a changing set of runs would show the differences between runs as jumps.
    """
    ends = [(track, max(track)) for track in tracks]
    every = sorted({step for track in tracks for step in track})
    shared = [s for s in every if all(s in track for track, end in ends if end >= s)]
    return thin(shared if len(shared) > 1 else sorted(tracks[0]), count)


def thin(steps: list[int], count: int) -> list[int]:
    """Return at most `count` steps, evenly spread, with the first and the last."""
    if len(steps) <= count:
        return steps
    return [steps[round(index)] for index in np.linspace(0, len(steps) - 1, count)]


def rounded(value: float) -> float:
    """Round to what a plot can show: five digits."""
    return float(f"{value:.5g}")


def bar(name: str, value: Stat, group: str = "", scale: float = 1) -> dict[str, Any]:
    """Return one bar with its whisker."""
    whisker = None if value.std is None else rounded(scale * value.std)
    return {"name": name, "y": rounded(scale * value.mean), "err": whisker, "group": group}


def step_time(plot: Plot, cells: list[Cell]) -> Iterator[Choice]:
    """Yield the time of a step of every cell, pairs with and without curriculum side by side."""
    for task, members in by_task(cells).items():
        timed = [(cell, value) for cell in members if (value := cell.stat("step_seconds"))]
        timed.sort(key=lambda pair: CURRICULUM.get(pair[0].algorithm, pair[0].algorithm))
        bars = [
            bar(c.name, value, f"with{'' if c.algorithm in CURRICULUM else 'out'} CPL", 1000)
            for c, value in timed
        ]
        if bars:
            yield {"name": task, "bars": bars, "runs": [run for c, _ in timed for run in c.used]}


def ablations(plot: Plot, cells: list[Cell]) -> Iterator[Choice]:
    """Yield the best error by the value of one setting, with all others at their usual value."""
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
                yield {"name": name, "bars": bars, "runs": runs}


def confusion(plot: Plot, cells: list[Cell]) -> Iterator[Choice]:
    """Yield the confusion matrix of every run with 2 to 100 classes."""
    for cell in cells:
        for run in cell.used:
            table = run.evals[-1].confusion
            if table and 1 < len(table) <= 100:
                names = cell.class_names(len(table))
                name = f"{cell.full_name}, {run.name}"
                yield {"name": name, "table": table, "names": names, "runs": [run]}


CHOICES = {
    "algorithm": curves_by_algorithm,
    "class": curves_by_class,
    "curriculum": step_time,
    "setting": ablations,
    "run": confusion,
}
