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
from fastssl.report.tables import tasks
from fastssl.sweep.grid import format_value

SHOWN = 12  # classes in one plot; with more, the six worst and the six best are shown
# The three pairs of the paper that differ by the curriculum alone.
CURRICULUM = {"flexmatch": "fixmatch", "flexuda": "uda", "flexpl": "pseudolabel"}

Links = Callable[[list[Run]], list[list[str]]]  # runs → [name, address] of each


@dataclass(slots=True)
class Plot:
    """A plot and its choices, as page.js reads it."""

    id: str
    kind: str  # lines, bars or heat
    title: str
    unit: str
    note: str
    choices: list[dict[str, Any]] = field(default_factory=list)
    by: str = ""  # curves of one name have one color in all plots with the same `by`


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """A plot of a field of metrics.jsonl over steps."""

    id: str
    title: str
    unit: str
    lines: str  # "evals" or "trains": which lines of a run
    field: str  # of MetricsLine: a number, or a list with a number for each class
    scale: float = 1

    def lines_of(self, run: Run) -> list[MetricsLine]:
        """Return the lines of a run that the plot shows."""
        found: list[MetricsLine] = getattr(run, self.lines)
        return found

    def value(self, line: MetricsLine, c: int | None = None) -> float | None:
        """Return the value of a line, or of class c in it."""
        found = getattr(line, self.field)
        if c is not None:
            found = found[c] if c < len(found) else None
        return None if found is None else self.scale * found


CURVES = [
    CurveSpec("accuracy", "Top-1 accuracy", "accuracy, %", "evals", "accuracy"),
    CurveSpec("loss", "Training loss", "loss", "trains", "loss"),
    CurveSpec("test-loss", "Test loss", "loss", "evals", "loss"),
    CurveSpec(
        "trusted",
        "Share of pseudo-labels that are trusted",
        "trusted, %",
        "trains",
        "trusted",
        100,
    ),
    CurveSpec(
        "pseudo-accuracy",
        "Accuracy of the trusted pseudo-labels, where true labels are known",
        "right, %",
        "trains",
        "pseudo_accuracy",
        100,
    ),
]
CLASS_CURVES = [
    CurveSpec("class-accuracy", "Accuracy by class", "accuracy, %", "evals", "class_accuracy", 100),
    CurveSpec("thresholds", "Thresholds T(c) by class", "threshold", "evals", "thresholds"),
    CurveSpec(
        "counts",
        "Unlabeled images by the class of their last confident pseudo-label",
        "images",
        "evals",
        "counts",
    ),
    CurveSpec(
        "class-coverage",
        "Share of unlabeled images that are trusted, by true class",
        "trusted, %",
        "trains",
        "pseudo_class_coverage",
        100,
    ),
    CurveSpec(
        "class-pseudo-accuracy",
        "Accuracy of the trusted pseudo-labels, by true class",
        "right, %",
        "trains",
        "pseudo_class_accuracy",
        100,
    ),
]


def build(cells: list[Cell], links: Links) -> list[Plot]:
    """Return every plot that has a choice."""
    made = [
        *[curves_by_algorithm(spec, cells, links) for spec in CURVES],
        *[curves_by_class(spec, cells, links) for spec in CLASS_CURVES],
        step_time(cells, links),
        ablations(cells, links),
        confusion(cells, links),
    ]
    return [plot for plot in made if plot.choices]


def curves_by_algorithm(spec: CurveSpec, cells: list[Cell], links: Links) -> Plot:
    """Return a plot with a curve for each cell and a choice for each task."""
    note = "Mean over seeds; the band spans the lowest and the highest seed."
    plot = Plot(spec.id, "lines", spec.title, spec.unit, note, by="algorithm")
    for task in tasks(cells):
        members = [cell for cell in cells if cell.task == task]
        found = [(cell, curve(cell, spec.lines_of, spec.value)) for cell in members]
        drawn = [(cell, series) for cell, series in found if series]
        if drawn:
            runs = [run for cell, _ in drawn for run in cell.used or cell.runs]
            plot.choices.append(line_choice(task, [series for _, series in drawn], links(runs)))
    return plot


def curves_by_class(spec: CurveSpec, cells: list[Cell], links: Links) -> Plot:
    """Return a plot with a curve for each class and a choice for each cell."""
    plot = Plot(spec.id, "lines", spec.title, spec.unit, "Mean over seeds.", by="class")
    for cell in cells:
        series = class_series(spec, cell)
        if series:
            count, half = len(class_means(cell)), SHOWN // 2
            note = f"the {half} worst and the {half} best at the best evaluation"
            choice = line_choice(cell.full_name, series, links(cell.used or cell.runs))
            choice["note"] = f"Of {count:,} classes, {note}." if count > SHOWN else ""
            plot.choices.append(choice)
    return plot


def class_series(spec: CurveSpec, cell: Cell) -> list[Series]:
    """Return a curve for each class that is shown."""
    lines = [line for run in cell.used or cell.runs for line in spec.lines_of(run)]
    width = next((len(found) for line in lines if (found := getattr(line, spec.field))), 0)
    accuracies = [accuracy.mean if accuracy else 0.0 for accuracy in class_means(cell)]
    count = len(accuracies) or width
    shown, names = list(range(count)), class_names(cell, count)
    if count > SHOWN:
        ranked = sorted(shown, key=accuracies.__getitem__) if accuracies else shown
        shown = sorted([*ranked[: SHOWN // 2], *ranked[-SHOWN // 2 :]])
    if spec.field == "counts" and width == count + 1:
        # The last count is that of the images without a confident pseudo-label so far.
        shown, names = [*shown, count], [*names, "none yet"]
    found = []
    for c in shown:
        series = curve(cell, spec.lines_of, partial(spec.value, c=c), band=False)
        if series:
            found.append({**series, "name": names[c]})
    return found


def line_choice(name: str, series: list[Series], runs: list[list[str]]) -> dict[str, Any]:
    """Return a choice of a plot; steps and times that all curves share are stored once."""
    first = series[0]
    found: dict[str, Any] = {"name": name, "runs": runs, "series": series}
    if all(item["x"] == first["x"] and item["t"] == first["t"] for item in series):
        found |= {"x": first["x"], "t": first["t"]}
        found["series"] = [{k: v for k, v in item.items() if k not in "xt"} for item in series]
    return found


def bar(name: str, value: Stat, group: str = "", scale: float = 1) -> dict[str, Any]:
    """Return one bar with its whisker."""
    whisker = None if value.std is None else rounded(scale * value.std)
    return {"name": name, "y": rounded(scale * value.mean), "err": whisker, "group": group}


def step_time(cells: list[Cell], links: Links) -> Plot:
    """Return the time of a step of every cell, pairs with and without curriculum side by side."""
    plot = Plot(
        "step-time",
        "bars",
        "Time of a step, with and without the curriculum (CPL)",
        "ms a step",
        "Median over the last intervals of a run; whiskers: standard deviation over seeds.",
    )
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
            plot.choices.append({"name": task, "bars": bars, "runs": links(runs)})
    return plot


def ablations(cells: list[Cell], links: Links) -> Plot:
    """Return the best error by the value of one setting, with all others at their usual value."""
    plot = Plot(
        "ablations",
        "bars",
        "Ablations: best error by one setting",
        "best error, %",
        "Mean over seeds; whiskers: standard deviation. Bars begin at 0.",
    )
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
                plot.choices.append({"name": name, "bars": bars, "runs": links(runs)})
    return plot


def confusion(cells: list[Cell], links: Links) -> Plot:
    """Return the confusion matrix of every run with 2 to 100 classes."""
    plot = Plot(
        "confusion",
        "heat",
        "Confusion matrix",
        "share of the true class's images, %",
        "Of the last evaluation. Rows: true classes; columns: predictions.",
    )
    for cell in cells:
        for run in cell.used:
            table = run.evals[-1].confusion
            if table and 1 < len(table) <= 100:
                choice = {"name": f"{cell.full_name}, {run.name}", "table": table}
                choice |= {"names": class_names(cell, len(table)), "runs": links([run])}
                plot.choices.append(choice)
    return plot
