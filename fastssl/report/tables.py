"""The tables of a report, as data; `page` and `formats` write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from fastssl.report import published
from fastssl.report.cells import Cell
from fastssl.report.class_table import class_table
from fastssl.report.compare import (
    FIXMATCH,
    Level,
    differs,
    levels,
    published_result,
    reached,
    reduction,
)
from fastssl.report.load import Found, Run
from fastssl.report.run_metrics import AT_BEST, Stat, run_metrics
from fastssl.report.table import Entry, Table, make_table, mean_std
from fastssl.tracking.console import clock


def tasks(cells: list[Cell]) -> list[str]:
    """Return the names of the tasks (data and labels) in order."""
    return list(dict.fromkeys(cell.task for cell in cells))


def build(found: Found, cells: list[Cell]) -> list[Table]:
    """Return every table that has a row."""
    made = [
        error_table(found, cells, "best_error"),
        error_table(found, cells, "median_error"),
        *[convergence_table(cells, task) for task in tasks(cells)],
        reduction_table(cells),
        quality_table(cells),
        *[class_table(cells, task) for task in tasks(cells)],
        speed_table(cells),
        runs_table(cells),
        machines_table(found.runs),
    ]
    return [table for table in made if table.rows]


def pivot(
    names: Iterable[str], tasks: list[str], entry: Callable[[str, str], Entry]
) -> list[list[Entry]]:
    """Return a row for each name, with an entry for each task."""
    return [[Entry(name), *(entry(name, task) for task in tasks)] for name in dict.fromkeys(names)]


def error_table(found: Found, cells: list[Cell], metric: str) -> Table:
    """Return algorithms against tasks, with the published result below ours."""
    columns = list(dict.fromkeys([*tasks(cells), *(gap.task for gap in found.missing)]))
    by_name = {(cell.name, cell.task): cell for cell in cells}
    # A gap with a sibling is counted in the sibling's cell. Of several, a failure is shown.
    gaps = sorted((gap for gap in found.missing if not gap.sibling), key=lambda gap: bool(gap.exit))
    texts = {(gap.variant, gap.task): gap.text for gap in gaps}

    def entry(name: str, task: str) -> Entry:
        cell = by_name.get((name, task))
        return compared(cell, metric) if cell else Entry(texts.get((name, task), ""))

    names = [cell.name for cell in cells] + [gap.variant for gap in gaps]
    return make_table(metric, ["algorithm", *columns], pivot(names, columns, entry))


def compared(cell: Cell, metric: str, digits: int = 2) -> Entry:
    """Return a metric of a cell with the published one below it."""
    ours = cell.stat(metric)
    if ours is None:
        return Entry("failed" if any(run.status == "failed" for run in cell.runs) else "none yet")
    text, wanted = mean_std(ours, digits), len(cell.runs) + cell.absent
    if ours.n < wanted:
        text += f" ({ours.n} of {wanted})"
    complete = any(run.complete for run in cell.runs)
    text += "" if complete else " unfinished"
    paper = published_result(cell, metric)
    if paper is None:
        return Entry(text)
    theirs = mean_std(Stat(paper.mean, paper.std, 3), digits)
    return Entry(text, f"paper {theirs}", differs(ours, paper, metric) if complete else "")


def convergence_table(cells: list[Cell], task: str) -> Table:
    """Return steps and time to given accuracies, FixMatch's final one among them."""
    members = [cell for cell in cells if cell.task == task and cell.used]
    goals = levels(members)
    columns = ["algorithm"]
    for goal in goals:
        columns += [goal.text, "of FixMatch's steps"] if goal.steps else [goal.text]
    rows = [
        [Entry(cell.name), *(entry for goal in goals for entry in convergence_entries(goal, cell))]
        for cell in members
        if goals
    ]
    return make_table("convergence", columns, rows, task)


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


def reduction_table(cells: list[Cell]) -> Table:
    """Return by how much the error of each algorithm is below FixMatch's."""
    by_name = {(cell.name, cell.task): cell for cell in cells}

    def entry(name: str, task: str) -> Entry:
        cell = by_name.get((name, task))
        value = reduction(cell, by_name.get((FIXMATCH, task)))
        if cell is None or value is None:
            return Entry("")
        claim = published.claim("relative_reduction", name, cell.data, cell.labels)
        return Entry(f"{value:.1f}", f"paper {claim:.2f}" if claim else "")

    names = [cell.name for cell in cells if cell.name != FIXMATCH]
    rows = pivot(names, tasks(cells), entry)
    shown = [row for row in rows if any(entry.text for entry in row[1:])]
    return make_table("reduction", ["algorithm", *tasks(cells)], shown)


def cell_rows(cells: list[Cell], entries: Callable[[Cell], list[Entry]]) -> list[list[Entry]]:
    """Return a row for each cell with results: task, algorithm and the entries."""
    return [[Entry(cell.task), Entry(cell.name), *entries(cell)] for cell in cells if cell.metrics]


def quality_table(cells: list[Cell]) -> Table:
    """Return precision, recall, F1, AUC, top-5 error and calibration at the best evaluation."""
    heads = ["top-5 error, %", "precision", "recall", "F1", "AUC", "calibration error"]

    def entry(cell: Cell, metric: str) -> Entry:
        digits = 2 if metric == "top5_error" else 4
        value = cell.stat(metric)
        if value is None or metric == "ece":  # no paper gives a calibration error
            return Entry(mean_std(value, digits))
        return compared(cell, metric, digits)

    rows = cell_rows(cells, lambda cell: [entry(cell, metric) for metric in AT_BEST])
    return make_table("quality", ["task", "algorithm", *heads], rows)


def speed_table(cells: list[Cell]) -> Table:
    """Return the speed of the runs of each cell."""

    def entries(cell: Cell) -> list[Entry]:
        time = cell.stat("seconds")
        texts = [
            mean_std(cell.stat("step_seconds"), 4),
            mean_std(cell.stat("images_per_s"), 0),
            mean_std(cell.stat("data_wait"), 2, 100),
            clock(time.mean) if time else "-",
        ]
        return [Entry(text) for text in texts]

    heads = ["task", "algorithm", "seconds a step", "images/s", "waiting, %", "whole run"]
    return make_table("speed", heads, cell_rows(cells, entries))


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
                str(run.config.get("seed", "-")),
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

    def text(value: Any) -> str:
        return str(value)[:80] if isinstance(value, str | int) else ""

    def machine(found: dict[str, Any]) -> tuple[str, ...]:
        versions = found.get("versions")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        return tuple(
            map(text, (found.get("processor"), found.get("cores"), torch, found.get("commit")))
        )

    counts = Counter(machine(run.environment) for run in runs)
    rows = [
        [*(Entry(text or "-") for text in texts), Entry(str(count))]
        for texts, count in sorted(counts.items())
        if any(texts)
    ]
    return make_table("machines", ["processor", "cores", "torch", "commit", "runs"], rows)
