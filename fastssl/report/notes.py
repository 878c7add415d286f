"""What a reader must know before trusting a table: gaps, failures, lengths, single seeds."""

from __future__ import annotations

from fastssl.engine.progress import LAST
from fastssl.report.cells import Cell, by_task, default_values
from fastssl.report.compare import unlike_paper
from fastssl.report.load import Found, Run
from fastssl.report.run_metrics import run_metrics
from pipelines.text import for_terminal, listed

LISTED = 12  # names in one note


def notes(found: Found, cells: list[Cell]) -> list[str]:
    """Return the notes, the most serious first."""
    subjects: dict[str, list[str]] = {}  # note → the runs or cells that it is about
    for run in found.runs:
        for note in run_notes(run):
            subjects.setdefault(note, []).append(run.name)
    for cell in cells:
        for note in cell_notes(cell):
            subjects.setdefault(note, []).append(cell.full_name)
    shared = [f"{some(names)}: {note}" for note, names in subjects.items()]
    made = [*found.problems, *gap_notes(found), *shared, *overall_notes(cells)]
    return [for_terminal(note) for note in made]


def some(names: list[str]) -> str:
    """Return the first of the distinct names, and how many more there are."""
    return listed(list(dict.fromkeys(names)), LISTED, "; ")


def gap_notes(found: Found) -> list[str]:
    """Return notes on the cells of a sweep that have no run."""
    codes = {run.name: run.summary.exit for run in found.missing}
    failed = [f"{name} (exit {code})" for name, code in codes.items() if code]
    absent = [name for name, code in codes.items() if not code]
    made = [f"failed before they began: {some(failed)}"] if failed else []
    return made + ([f"missing, not trained yet: {some(absent)}"] if absent else [])


def run_notes(run: Run) -> list[str]:
    """Return notes on what is wrong with a run."""
    made = []
    if run.status == "failed":
        made.append(f"failed with exit {run.summary.exit}: {run.summary.what}")
    elif not run.complete:
        made.append(f"{run.status} at step {run.steps:,}")
    if not run.evals:
        made.append("not evaluated yet")
    if "changed_inputs" in run.config:
        made.append(f"its inputs changed while it was trained: {run.config['changed_inputs']}")
    ours = run_metrics(run)
    for key in ("best_error", "median_error"):
        written, value = getattr(run.summary, key), ours[key]
        known = run.complete and written is not None and value is not None
        if known and abs(written - value) > 1e-6:
            made.append(f"{key} is {written:.4f} in summary.json, {value:.4f} by its metrics")
    return made


def cell_notes(cell: Cell) -> list[str]:
    """Return notes on what the mean of a cell does not show."""
    made = []
    complete = [run for run in cell.runs if run.complete]
    if len(cell.runs) > 1 and complete and len(complete) < len(cell.runs):
        made.append(f"means over the {len(complete)} of {len(cell.runs)} runs that ended")
    lengths = sorted({run.steps for run in cell.used})
    if len(lengths) > 1:
        made.append(f"runs of different lengths, {lengths[0]:,} to {lengths[-1]:,} steps")
    seeds = [run.config.get("seed") for run in cell.runs]
    if len(set(map(str, seeds))) < len(seeds):
        made.append(f"a seed occurs twice among its {len(seeds)} runs")
    versions = sorted({str(run.environment.get("fastssl", "unknown")) for run in cell.runs})
    if len(versions) > 1:
        made.append(f"runs of several versions of fastssl: {', '.join(versions)}")
    counts = [row["evaluations"] for row in cell.metrics]
    if any(run.complete and n < LAST for run, n in zip(cell.used, counts, strict=True)):
        made.append(f"fewer than {LAST} evaluations, so the median is over all there are")
    unlike = unlike_paper(cell, default_values(cell.data, cell.algorithm))
    if unlike:
        made.append(f"not the paper's settings ({unlike})")
    return made


def overall_notes(cells: list[Cell]) -> list[str]:
    """Return notes that cover many cells."""
    used = [cell for cell in cells if cell.used]
    single = [cell.full_name for cell in used if len(cell.used) == 1]
    made = []
    if single and len(single) == len(used):
        made.append("one seed only: no spread is known, so differences may be chance")
    elif single:
        made.append(f"one seed only, no spread known: {some(single)}")
    for task, members in by_task(cells).items():
        steps = sorted({str(run.config.get("steps")) for cell in members for run in cell.runs})
        if len(steps) > 1:
            made.append(f"{task}: runs of {', '.join(steps)} steps are side by side")
    few = [cell.task for cell in used if len(cell.class_means) == 2]
    many = [cell.task for cell in used if len(cell.class_means) > 100]
    made += [f"two classes, so no top-5: {some(few)}"] if few else []
    made += [f"more than 100 classes, so no AUC: {some(many)}"] if many else []
    return made
