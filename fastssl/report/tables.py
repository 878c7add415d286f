"""The tables of a report, as data: every format writes them in its own way."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastssl.report import published
from fastssl.report.aggregation import Stat, class_accuracy, figures, stat
from fastssl.report.cells import Cell
from fastssl.report.compare import FIXMATCH, Level, differs, levels, reached, reduction
from fastssl.report.load import Missing, Run
from fastssl.tracking.console import clock

CLASSES = 30  # rows of the class table; with more classes the worst and best are shown


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands in one place of a table: our figure, a smaller line below it, and a mark."""

    text: str
    below: str = ""  # the paper's figure, or the time that belongs to a number of steps
    mark: str = ""  # "better" or "worse" where they differ by more than two deviations
    run: Run | None = None  # what it links to


@dataclass(slots=True)
class Table:
    """A table with its heading and a sentence on how to read it."""

    id: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Entry]] = field(default_factory=list)


def pm(value: Stat | None, digits: int = 2, scale: float = 1.0) -> str:
    """Write mean ± deviation, or a dash."""
    if value is None:
        return "-"
    text = f"{scale * value.mean:,.{digits}f}"
    return text if value.std is None else f"{text} ± {scale * value.std:.{digits}f}"


def tasks(cells: list[Cell]) -> list[str]:
    """Return the names of the tasks (data and labels) in order."""
    return list(dict.fromkeys(cell.column for cell in cells))


def build(cells: list[Cell], missing: list[Missing]) -> list[Table]:
    """Return every table that the runs give something for."""
    made = [
        error_table(cells, missing, "best_error", "Best error, %", "The lowest of all evaluations"),
        error_table(
            cells,
            missing,
            "median_error",
            "Median error of the last 20 evaluations, %",
            "What the best hides: how good a model is where one stops without looking",
        ),
        *[convergence(cells, task) for task in tasks(cells)],
        reductions(cells),
        quality(cells),
        *[class_table(cells, task) for task in tasks(cells)],
        speed(cells),
    ]
    return [table for table in made if table and table.rows]


def error_table(
    cells: list[Cell], missing: list[Missing], metric: str, title: str, what: str
) -> Table:
    """Set algorithms against tasks; the paper's figure stands below ours."""
    columns = list(dict.fromkeys([*tasks(cells), *(cell.task for cell in missing)]))
    note = f"{what}; mean ± sample standard deviation over seeds, (n of m) where not all count."
    table = Table(metric, title, note, ["algorithm", *columns])
    places = {(cell.name, cell.column): cell for cell in cells}
    empty = sorted((gap for gap in missing if not gap.like), key=lambda gap: gap.exit is not None)
    gaps = {(gap.variant, gap.task): gap.text for gap in empty}
    names = [cell.name for cell in cells] + [gap.variant for gap in empty]
    for name in dict.fromkeys(names):
        row = [Entry(name)]
        for column in columns:
            cell = places.get((name, column))
            gap = gaps.get((name, column), "")
            row.append(compared(cell, metric) if cell else Entry(gap))
        table.rows.append(row)
    return table


def compared(cell: Cell, metric: str, digits: int = 2) -> Entry:
    """Return a figure of a cell with the published one beside it."""
    ours = cell.stat(metric)
    if ours is None:
        return Entry("failed" if any(run.status == "failed" for run in cell.runs) else "none yet")
    text, wanted = pm(ours, digits), len(cell.runs) + cell.absent
    if ours.n < wanted:
        text += f" ({ours.n} of {wanted})"
    ended = any(run.complete for run in cell.runs)
    text += "" if ended else " unfinished"
    paper = published.figure(metric, cell.algorithm, cell.data, cell.labels, cell.unusual)
    if paper is None:
        return Entry(text)
    theirs = pm(Stat(paper.mean, paper.std, 3), digits)
    return Entry(text, f"paper {theirs}", differs(ours, paper, metric) if ended else "")


def convergence(cells: list[Cell], task: str) -> Table | None:
    """Tell steps and time to given accuracies, and to FixMatch's final one."""
    members = [cell for cell in cells if cell.column == task and cell.used]
    goals = levels(members)
    if not goals:
        return None
    table = Table(
        f"convergence-{task}",
        f"Steps and time to reach an accuracy: {task}",
        "Step of the first evaluation at or above the accuracy, and below it the time; means over "
        "the seeds that reach it (n of m where not all do). FixMatch's final accuracy is the mean "
        "of its last evaluations.",
        ["algorithm"],
    )
    for goal in goals:
        table.columns += [goal.text, "of FixMatch's steps"] if goal.steps else [goal.text]
    for cell in members:
        found = [entry for goal in goals for entry in convergence_entries(goal, cell)]
        table.rows.append([Entry(cell.name), *found])
    return table


def convergence_entries(level: Level, cell: Cell) -> list[Entry]:
    """Return the steps and time of a cell to a level, and the share of FixMatch's steps."""
    hit = reached(cell, level.accuracy)
    if hit is None:
        return [Entry("not reached"), Entry("-")] if level.steps else [Entry("not reached")]
    count = "" if hit.n == len(cell.used) else f" ({hit.n} of {len(cell.used)})"
    time = "" if hit.seconds is None else clock(hit.seconds)
    steps = Entry(f"{hit.steps:,.0f}{count}", time)
    if not level.steps:
        return [steps]
    claim = None
    if not cell.settings:
        claim = published.claim("to_fixmatch", cell.algorithm, cell.data, cell.labels)
    paper = f"paper {claim:,.0f} steps" if claim else ""
    return [steps, Entry(f"{100 * hit.steps / level.steps:.0f} %", paper)]


def reductions(cells: list[Cell]) -> Table:
    """Tell how much of FixMatch's error each algorithm takes away."""
    columns = tasks(cells)
    table = Table(
        "reduction",
        "Relative error reduction over FixMatch, %",
        "(FixMatch - algorithm) / FixMatch, of the mean best errors; negative is worse.",
        ["algorithm", *columns],
    )
    places = {(cell.name, cell.column): cell for cell in cells}
    for name in dict.fromkeys(cell.name for cell in cells if cell.name != FIXMATCH):
        row = [Entry(name)]
        for column in columns:
            cell, base = places.get((name, column)), places.get((FIXMATCH, column))
            value = reduction(cell, base)
            if cell is None or value is None:
                row.append(Entry(""))
                continue
            claim = published.claim("relative_reduction", name, cell.data, cell.labels)
            row.append(Entry(f"{value:.1f}", f"paper {claim:.2f}" if claim else ""))
        if any(entry.text for entry in row[1:]):
            table.rows.append(row)
    return table


def quality(cells: list[Cell]) -> Table:
    """Tell precision, recall, F1, AUC, top-5 and calibration at the best evaluation."""
    names = ("top5_error", "precision", "recall", "f1", "auc", "ece")
    heads = ["top-5 error, %", "precision", "recall", "F1", "AUC", "calibration error"]
    table = Table(
        "quality",
        "Precision, recall, F1, AUC, top-5",
        "At the best evaluation; means over classes. A dash: not defined (top-5 needs more than "
        "five classes, AUC is left out above 100).",
        ["task", "algorithm", *heads],
    )
    for cell in cells:
        if not cell.used:
            continue
        row = [Entry(cell.column), Entry(cell.name)]
        for name in names:
            digits = 2 if name == "top5_error" else 4
            known = cell.stat(name) is not None
            plain = name == "ece" or not known
            row.append(
                Entry(pm(cell.stat(name), digits)) if plain else compared(cell, name, digits)
            )
        table.rows.append(row)
    return table


def class_table(cells: list[Cell], task: str) -> Table | None:
    """Tell the accuracy of every class, or of the worst and best where there are many."""
    members = [cell for cell in cells if cell.column == task and cell.used]
    means = {cell.name: class_means(cell) for cell in members}
    count = max((len(row) for row in means.values()), default=0)
    if not count:
        return None
    shown = list(range(count))
    note = "Share of a class's test images that are right, at the best evaluation, %."
    if count > CLASSES:
        ranked = sorted(shown, key=lambda c: average(means, c))
        shown = [*ranked[: CLASSES // 2], *ranked[-CLASSES // 2 :]]
        note += (
            f" {count:,} classes: the {CLASSES // 2} worst and the {CLASSES // 2} best are shown."
        )
    table = Table(f"classes-{task}", f"Accuracy by class: {task}", note, ["class", *means])
    names = class_names(members[0], count)
    for c in shown:
        row = [Entry(names[c])]
        for cell in members:
            values = means[cell.name]
            known = published.class_accuracy(cell.algorithm, cell.data, cell.labels)
            paper = f"paper {100 * known[c]:.1f}" if known and not cell.unusual else ""
            row.append(Entry(pm(values[c], 1, 100) if c < len(values) else "-", paper))
        table.rows.append(row)
    return table


def class_means(cell: Cell) -> list[Stat | None]:
    """Return mean and deviation of the accuracy of each class."""
    rows = [row for row in map(class_accuracy, cell.used) if row]
    if not rows:
        return []
    return [stat(row[c] for row in rows) for c in range(min(map(len, rows)))]


def average(means: dict[str, list[Stat | None]], c: int) -> float:
    """Return the mean accuracy of a class over all algorithms."""
    found = [row[c] for row in means.values() if c < len(row)]
    values = [value.mean for value in found if value]
    return sum(values) / len(values) if values else 0.0


def class_names(cell: Cell, count: int) -> list[str]:
    """Return the names of the classes: the run's own, those of the data set, or numbers."""
    from pipelines.datasets import DATASETS

    known = [run.environment.get("class_names") for run in cell.runs]
    known.append(DATASETS[cell.data].class_names if cell.data in DATASETS else None)
    for names in known:
        if isinstance(names, list | tuple) and len(names) == count:
            return [str(name) for name in names]
    return [str(c) for c in range(count)]


def speed(cells: list[Cell]) -> Table:
    """Tell how fast the runs were."""
    table = Table(
        "speed",
        "Speed",
        "Means over seeds. A step: the median over the last stretches of a run, evaluations "
        "aside. Waiting: share of the training time in which the step waited for data.",
        ["task", "algorithm", "seconds a step", "images/s", "waiting, %", "whole run"],
    )
    for cell in cells:
        if not cell.used:
            continue
        time = cell.stat("seconds")
        table.rows.append(
            [
                Entry(cell.column),
                Entry(cell.name),
                Entry(pm(cell.stat("step_seconds"), 4)),
                Entry(pm(cell.stat("images_per_s"), 0)),
                Entry(pm(cell.stat("data_wait"), 2, 100)),
                Entry(clock(time.mean) if time else "-"),
            ]
        )
    return table


def runs_table(cells: list[Cell]) -> Table:
    """List every run with a link to its folder."""
    heads = ["run", "task", "algorithm", "seed", "state", "steps", "best", "median", "last"]
    table = Table("runs", "Runs", "Errors in percent.", [*heads, "time", "evaluations"])
    for cell in cells:
        for run in cell.runs:
            row = figures(run)
            errors = [row[key] for key in ("best_error", "median_error", "last_error")]
            texts = [
                cell.column,
                cell.name,
                str(run.config.get("seed", "-")),
                run.status,
                f"{row['steps']:,}",
                *["-" if value is None else f"{value:.2f}" for value in errors],
                "-" if row["seconds"] is None else clock(row["seconds"]),
                f"{row['evaluations']:,}",
            ]
            table.rows.append([Entry(run.name, run=run), *map(Entry, texts)])
    return table
