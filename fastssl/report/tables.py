"""The tables of a report, as data; `page` and `formats` write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fastssl.report import compare, published
from fastssl.report.cells import Cell, by_task, worst_and_best
from fastssl.report.load import Run
from fastssl.report.run_metrics import Stat, run_metrics, stat
from fastssl.tracking.console import clock
from pipelines.text import for_terminal

TEXTS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8")
)
CLASSES = 30  # rows of the table; with more classes the worst and the best are shown


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a table: our result, a smaller line below it, and a mark."""

    text: str
    below: str = ""  # the published result, or the time that belongs to a number of steps
    mark: str = ""  # "better" or "worse" if they differ by more than two deviations
    run: Run | None = None  # what the entry links to


@dataclass(slots=True)
class Table:
    """A table with its title and a note on how to read it."""

    id: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Entry]]


def make_table(name: str, columns: list[str], rows: list[list[Entry]], task: str = "") -> Table:
    """Return a table with the title and note of texts.yaml; one of several names its task."""
    text = TEXTS["tables"][name]
    id, title = (f"{name}-{task}", f"{text['title']}: {task}") if task else (name, text["title"])
    return Table(id, title, text["note"], columns, rows)


def mean_std(value: Stat | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return "mean ± deviation" or a dash."""
    if value is None:
        return "-"
    text = f"{scale * value.mean:,.{digits}f}"
    return text if value.std is None else f"{text} ± {scale * value.std:.{digits}f}"


def build(cells: list[Cell]) -> list[Table]:
    """Return every table that has a row."""
    used = by_task([cell for cell in cells if cell.used])
    made = [
        error_table(cells, "best_error"),
        error_table(cells, "median_error"),
        *[convergence_table(members, task) for task, members in used.items()],
        reduction_table(cells),
        metrics_table(cells, "quality"),
        *[class_table(members, task) for task, members in used.items()],
        metrics_table(cells, "speed"),
        runs_table(cells),
        machines_table([run for cell in cells for run in cell.runs]),
    ]
    return [table for table in made if table.rows]


def pivot(
    names: Iterable[str], cells: list[Cell], entry: Callable[[Cell | None], Entry]
) -> list[list[Entry]]:
    """Return a row for each name, with an entry for each task."""
    by_name = {(cell.name, cell.task): cell for cell in cells}
    return [
        [Entry(name), *(entry(by_name.get((name, task))) for task in by_task(cells))]
        for name in dict.fromkeys(names)
    ]


def error_table(cells: list[Cell], metric: str) -> Table:
    """Return algorithms against tasks, with the published result below ours."""
    rows = pivot(
        [cell.name for cell in cells],
        cells,
        lambda cell: compared(cell, metric) if cell else Entry(""),
    )
    return make_table(metric, ["algorithm", *by_task(cells)], rows)


def compared(cell: Cell, metric: str, digits: int = 2) -> Entry:
    """Return a metric of a cell with the published one below it."""
    ours, members = cell.stat(metric), [*cell.runs, *cell.missing]
    if ours is None:
        failed = [run.status for run in members if run.status.startswith("failed")]
        return Entry(failed[0] if failed else "none yet" if cell.runs else "missing")
    text = mean_std(ours, digits)
    if ours.n < len(members):
        text += f" ({ours.n} of {len(members)})"
    complete = any(run.complete for run in cell.runs)
    text += "" if complete else " unfinished"
    paper = compare.published_result(cell, metric)
    if paper is None:
        return Entry(text)
    theirs = mean_std(Stat(paper.mean, paper.std, 3), digits)
    return Entry(text, f"paper {theirs}", compare.differs(ours, paper, metric) if complete else "")


def convergence_table(cells: list[Cell], task: str) -> Table:
    """Return steps and time to given accuracies, FixMatch's final one among them."""
    goals = compare.levels(cells)
    columns = ["algorithm"]
    for goal in goals:
        columns += [goal.text, "of FixMatch's steps"] if goal.steps else [goal.text]
    rows = [
        [Entry(cell.name), *(entry for goal in goals for entry in convergence_entries(goal, cell))]
        for cell in cells
        if goals
    ]
    return make_table("convergence", columns, rows, task)


def convergence_entries(level: compare.Level, cell: Cell) -> list[Entry]:
    """Return the steps and time of a cell to a level, and the share of FixMatch's steps."""
    steps, time = compare.reached(cell, level.accuracy)
    if steps is None:
        return [Entry("not reached"), Entry("-")] if level.steps else [Entry("not reached")]
    count = "" if steps.n == len(cell.used) else f" ({steps.n} of {len(cell.used)})"
    entry = Entry(f"{steps.mean:,.0f}{count}", clock(time.mean) if time else "")
    if not level.steps:
        return [entry]
    claim = None
    if not cell.settings:
        claim = published.claim("to_fixmatch", cell.algorithm, cell.data, cell.labels)
    paper = f"paper {claim:,.0f} steps" if claim else ""
    return [entry, Entry(f"{100 * steps.mean / level.steps:.0f} %", paper)]


def reduction_table(cells: list[Cell]) -> Table:
    """Return by how much the error of each algorithm is below FixMatch's."""
    bases = {task: compare.baseline(members) for task, members in by_task(cells).items()}
    cells = [cell for cell in cells if bases[cell.task] and bases[cell.task] is not cell]

    def entry(cell: Cell | None) -> Entry:
        value = compare.reduction(cell, bases[cell.task]) if cell else None
        if cell is None or value is None:
            return Entry("")
        claim = published.claim("relative_reduction", cell.name, cell.data, cell.labels)
        return Entry(f"{value:.1f}", f"paper {claim:.2f}" if claim else "")

    rows = pivot([cell.name for cell in cells], cells, entry)
    shown = [row for row in rows if any(entry.text for entry in row[1:])]
    return make_table("reduction", ["algorithm", *by_task(cells)], shown)


def metrics_table(cells: list[Cell], name: str) -> Table:
    """Return the metrics of each cell that texts.yaml lists as columns of the table."""
    columns = TEXTS["tables"][name]["columns"]

    def entry(cell: Cell, metric: str, digits: int = 2, scale: float = 1) -> Entry:
        value = cell.stat(metric)
        if value and metric in published.paper():
            return compared(cell, metric, digits)
        if value and metric == "seconds":
            return Entry(clock(value.mean))
        return Entry(mean_std(value, digits, scale))

    rows = [
        [Entry(cell.task), Entry(cell.name), *(entry(cell, **how) for how in columns.values())]
        for cell in cells
        if cell.metrics
    ]
    return make_table(name, ["task", "algorithm", *columns], rows)


def class_table(cells: list[Cell], task: str) -> Table:
    """Return the accuracy of every class, or of the worst and best if there are many."""
    count = max(len(cell.class_means) for cell in cells)
    names = cells[0].class_names(count)
    table = make_table("classes", ["class", *(cell.name for cell in cells)], [], task)
    if count > CLASSES:
        half = CLASSES // 2
        table.note += f" {count:,} classes: the {half} worst and the {half} best are shown."
    for c in worst_and_best([average_accuracy(cells, c) for c in range(count)], CLASSES):
        row = [Entry(names[c])]
        for cell in cells:
            values = cell.class_means
            known = published.class_accuracy(cell.algorithm, cell.data, cell.labels)
            paper = f"paper {100 * known[c]:.1f}" if known and not cell.unusual else ""
            row.append(Entry(mean_std(values[c], 1, 100) if c < len(values) else "-", paper))
        table.rows.append(row)
    return table


def average_accuracy(cells: list[Cell], c: int) -> float:
    """Return the mean accuracy of a class over all cells."""
    # class_means[c:c+1] is empty where a run has fewer classes.
    means = [mean for cell in cells for mean in cell.class_means[c : c + 1] if mean]
    found = stat(mean.mean for mean in means)
    return found.mean if found else 0.0


def runs_table(cells: list[Cell]) -> Table:
    """Return every run with a link to its folder."""
    heads = ["run", "task", "algorithm", "seed", "state", "steps", "best", "median", "last"]
    rows: list[list[Entry]] = []
    for cell in cells:
        for run in cell.runs:
            row = run_metrics(run)
            errors = [row[key] for key in ("best_error", "median_error", "last_error")]
            texts = [
                cell.task,
                cell.name,
                for_terminal(str(run.config.get("seed", "-"))),
                run.status,
                f"{row['steps']:,}",
                *["-" if value is None else f"{value:.2f}" for value in errors],
                "-" if row["seconds"] is None else clock(row["seconds"]),
                f"{row['evaluations']:,}",
            ]
            rows.append([Entry(run.name, run=run), *map(Entry, texts)])
    return make_table("runs", [*heads, "time", "evaluations"], rows)


def machines_table(runs: list[Run]) -> Table:
    """Return the environments that runs recorded, with the number of runs in each."""

    def machine(found: dict[str, Any]) -> tuple[str, ...]:
        versions = found.get("versions")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        values = (found.get("processor"), found.get("cores"), torch, found.get("commit"))
        return tuple(
            for_terminal(str(value)[:80]) if isinstance(value, str | int) else ""
            for value in values
        )

    counts = Counter(machine(run.environment) for run in runs)
    rows = [
        [*(Entry(text or "-") for text in texts), Entry(str(count))]
        for texts, count in sorted(counts.items())
        if any(texts)
    ]
    return make_table("machines", ["processor", "cores", "torch", "commit", "runs"], rows)
