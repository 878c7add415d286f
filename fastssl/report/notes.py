"""What a reader must know before believing a table: gaps, failures, lengths, single seeds."""

from __future__ import annotations

from fastssl.engine.progress import LAST
from fastssl.report.aggregation import best_line, class_accuracy, errors, median_error
from fastssl.report.cells import Cell, default_values
from fastssl.report.compare import unlike_paper
from fastssl.report.load import Found, Run, number

LISTED = 12  # names in one sentence


def notes(found: Found, cells: list[Cell]) -> list[str]:
    """Return the sentences, the gravest first."""
    about: dict[str, list[str]] = {}  # what is told → the runs or cells that it is told of
    for run in found.runs:
        for what in about_run(run):
            about.setdefault(what, []).append(run.name)
    for cell in cells:
        for what in about_cell(cell):
            about.setdefault(what, []).append(f"{cell.column}: {cell.name}")
    shared = [f"{some(names)}: {what}" for what, names in about.items()]
    return [*found.problems, *gaps(found), *shared, *together(cells)]


def gaps(found: Found) -> list[str]:
    """Tell of cells of a sweep that have no run."""
    told = []
    failed = [f"{cell.name} (exit {cell.exit})" for cell in found.missing if cell.exit]
    absent = [cell.name for cell in found.missing if not cell.exit]
    if failed:
        told.append(f"failed before they began: {some(failed)}")
    if absent:
        told.append(f"missing, not trained yet: {some(absent)}")
    return told


def some(names: list[str]) -> str:
    """Return the first names and how many more there are."""
    rest = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return "; ".join(names[:LISTED]) + rest


def about_run(run: Run) -> list[str]:
    """Tell what is wrong with a run."""
    told = []
    if run.status == "failed":
        what = str(run.summary.get("what", "no reason is written down"))
        told.append(f"failed with exit {run.summary.get('exit')}: {what}")
    elif not run.complete:
        told.append(f"{run.status} at step {run.steps:,}")
    if not run.evals:
        told.append("not evaluated yet")
        return told
    line = best_line(run) or {}
    pairs = (("best_error", number(line.get("error"))), ("median_error", median_error(run)))
    for key, ours in pairs:
        written = number(run.summary.get(key))
        if run.complete and None not in (written, ours) and abs(written - ours) > 1e-6:  # type: ignore[operator]
            told.append(f"{key} is {written:.4f} in summary.json, {ours:.4f} by its metrics")
    return told


def about_cell(cell: Cell) -> list[str]:
    """Tell what a mean of this cell does not."""
    told = []
    complete = [run for run in cell.runs if run.complete]
    if len(cell.runs) > 1 and complete and len(complete) < len(cell.runs):
        told.append(f"means over the {len(complete)} of {len(cell.runs)} runs that ended")
    lengths = sorted({run.steps for run in cell.used})
    if len(lengths) > 1:
        told.append(f"runs of different lengths, {lengths[0]:,} to {lengths[-1]:,} steps")
    seeds = [run.config.get("seed") for run in cell.runs]
    if len(set(map(str, seeds))) < len(seeds):
        told.append(f"a seed stands twice among its {len(seeds)} runs")
    if any(len(errors(run)) < LAST for run in cell.used if run.complete):
        told.append(f"fewer than {LAST} evaluations, so the median is over all there are")
    unlike = unlike_paper(cell, default_values(cell.data, cell.algorithm))
    if unlike:
        told.append(f"not the paper's settings ({unlike})")
    return told


def together(cells: list[Cell]) -> list[str]:
    """Tell what holds for many cells in one sentence."""
    told = []
    single = [f"{cell.column}: {cell.name}" for cell in cells if len(cell.used) == 1]
    if single and len(single) == len([cell for cell in cells if cell.used]):
        told.append("one seed only: no spread is known, so differences may be chance")
    elif single:
        told.append(f"one seed only, no spread known: {some(single)}")
    lengths = {(cell.column, str(run.config.get("steps"))) for cell in cells for run in cell.runs}
    for task in dict.fromkeys(cell.column for cell in cells):
        several = sorted(steps for column, steps in lengths if column == task)
        if len(several) > 1:
            told.append(f"{task}: runs of {', '.join(several)} steps stand side by side")
    counts: dict[int, list[str]] = {}
    for cell in cells:
        for run in cell.used[:1]:
            counts.setdefault(len(class_accuracy(run)), []).append(cell.column)
    if 2 in counts:
        told.append(f"two classes, so no top-5: {some(list(dict.fromkeys(counts[2])))}")
    many = [column for count, names in counts.items() if count > 100 for column in names]
    if many:
        told.append(f"more than 100 classes, so no AUC: {some(list(dict.fromkeys(many)))}")
    return told
