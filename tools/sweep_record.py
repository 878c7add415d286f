"""Record the runs of a sweep, and draw their errors.

    fastssl sweep cifar10_cpu --jobs 2 --out runs/cifar10_cpu
    python tools/sweep_record.py runs/cifar10_cpu

writes tools/results/cifar10-cpu.json and docs/images/cifar10-cpu.svg: an entry for every run, and
from the entries the results of every algorithm, its differences from the others over the seeds they
share, and its error by minutes, the mean over seeds within the range of the seeds. Runs made by
another line than the one above: give it with --command.

With --partial cells may be missing. Entries of earlier calls stay, so that run folders need not be
kept; --record NAME adds the runs to the record of another sweep.
"""

import argparse
import json
import statistics
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastssl.algorithms import ALGORITHMS
from fastssl.config.resolve import shipped_files
from fastssl.config.schema import keys_that_may_differ
from fastssl.errors import UserError
from fastssl.profiling.measure import environment
from fastssl.report.cells import Cell, by_task, group
from fastssl.report.compare import baseline, levels, reached
from fastssl.report.load import Found, Run, read_all
from fastssl.report.plots import curve, rounded
from fastssl.report.records import MetricsLine, Summary
from fastssl.report.run_metrics import run_metrics, stat
from fastssl.sweep.cell_state import read_cells
from tools.error_figure import draw

RESULTS = Path(__file__).resolve().parent / "results"
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
# Keys that are recorded although runs of one cell may differ in them. The others of these, such as
# the store, are places on a machine or matters of logging.
RECORDED = {"data", "labels", "algorithm", "seed", "split_seed", "threads", "loader_threads"}
LEFT_OUT = keys_that_may_differ("cells") - RECORDED

Entry = dict[str, Any]  # what is recorded of a run


def main() -> None:
    """Write the record and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of a sweep")
    parser.add_argument("--partial", action="store_true", help="record the runs that are finished")
    parser.add_argument("--record", help="name of the record; default: that of the folder")
    parser.add_argument("--command", help="what made the runs; default: the sweep's line")
    given = parser.parse_args()
    folder = given.runs
    name = given.record or folder.name.replace("_", "-")
    try:
        found = read_all([folder])
    except UserError as error:
        sys.exit(f"error: {error}")
    listed = {cell.name for cell in read_cells(folder)}
    # A cell that was trained again in a new folder is listed by that folder alone.
    runs = [run for run in found.runs if not listed or run.path.name in listed]
    done = [run for run in runs if run.complete and run.evals]
    if not given.partial:
        check_whole(found, done, runs)
    file = RESULTS / f"{name}.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    entries = merge(earlier_entries(before), [entry(run) for run in done], file.name)
    if not entries:
        fail(f"no run in {folder} is finished", "wait for the first one")
    missing = sorted((listed | {run.path.name for run in runs}) - {one["run"] for one in entries})
    line = f"fastssl sweep {typed(folder.name)} --jobs 2 --out runs/{folder.name}"
    record = make_record(name, entries, before, {folder.name: missing}, given.command or line)
    file.write_text(json.dumps(record, indent=1) + "\n")
    (IMAGES / f"{name}.svg").write_text(draw(record["results"]))
    print(f"{file.name}: {len(entries)} runs, {len(done)} of them in {folder}")
    for problem in found.problems:
        print(problem)
    if missing:
        print(f"missing of {folder.name}: {', '.join(missing)}")


def fail(what: str, fix: str) -> NoReturn:
    """Exit with two lines: what is wrong, and what to do."""
    sys.exit(f"error: {what}\n  fix: {fix}")


def check_whole(found: Found, done: list[Run], runs: list[Run]) -> None:
    """Exit unless all cells are done, by one commit."""
    unfinished = [run.name for run in [*runs, *found.missing] if run not in done]
    if unfinished or found.problems:
        names = ", ".join([*unfinished, *found.problems])
        fail(f"not all cells are done: {names}", "finish the sweep, or add --partial")
    commits = {str(run.environment.get("commit")) for run in done}
    if len(commits) > 1:
        fail(f"the runs are of several commits: {', '.join(sorted(commits))}", "add --partial")


def typed(name: str) -> str:
    """Return how a sweep is named on the command line, by the name of its folder."""
    names = [known for known in shipped_files(sweeps=True) if known.split("/")[-1] == name]
    return names[0].removeprefix("paper/") if names else name


def entry(run: Run) -> Entry:
    """Return what is recorded of a run."""
    commit = str(run.environment.get("commit") or "")
    if not commit:
        fail(
            f"{run.name} does not say which commit made it",
            "train from a checkout of the repository",
        )
    metrics, last = run_metrics(run), run.recent[-1] if run.recent else MetricsLine(step=0)
    evals = [line for line in run.evals if line.error is not None and line.seconds is not None]
    made = {
        "run": run.path.name,
        "settings": {key: run.config[key] for key in sorted(run.config.keys() - LEFT_OUT)},
        "commit": commit,
        "machine": run.environment.get("processor"),
        "cores": run.environment.get("cores"),
        "load_1m": run.environment.get("load_1m"),
        "inputs": run.inputs,
        "steps": run.steps,
        "images": images_seen(run.config, run.steps),
        "ms_per_step": rounded(1000 * (run.summary.seconds_per_step or 0.0)),
        "final_error": round(metrics["last_error"], 4),
        "best_error": round(metrics["best_error"], 4),
        "trusted": last.trusted and rounded(last.trusted),
        "pseudo_label_accuracy": last.pseudo_accuracy and rounded(last.pseudo_accuracy),
        "evaluations": {
            "step": [line.step for line in evals],
            "minutes": [round((line.seconds or 0.0) / 60, 4) for line in evals],
            "error": [round(line.error or 0.0, 4) for line in evals],
        },
    }
    if any(line.validation_error is not None for line in evals):
        made["evaluations"]["validation_error"] = [line.validation_error for line in evals]
    found: Entry = json.loads(json.dumps(made))  # as it will be read from the record
    return found


def images_seen(config: dict[str, Any], step: float) -> int | None:
    """Return the labeled and unlabeled images that a run has seen after a step."""
    if config["algorithm"] not in ALGORITHMS:
        return None
    algorithm = ALGORITHMS[config["algorithm"]]
    ratio = (config["ratio"] or algorithm.ratio) if algorithm.unlabeled else 0
    later = max(0, step - config["supervised_steps"])
    return round(config["batch"] * (step + ratio * later))


def earlier_entries(record: dict[str, Any]) -> list[Entry]:
    """Return the entries of a record, each with all of its settings."""
    shared = record.get("settings", {})
    return [
        {**one, "settings": dict(sorted((shared | one["settings"]).items()))}
        for one in record.get("runs", [])
    ]


def merge(earlier: list[Entry], new: list[Entry], file: str) -> list[Entry]:
    """Return all entries in the order of their names; none is replaced by another one."""
    found = {one["run"]: one for one in earlier}
    for one in new:
        known = found.setdefault(one["run"], one)
        # A later version of the code may know more settings.
        both = known["settings"].keys() & one["settings"].keys()
        here, there = ({**e, "settings": {k: e["settings"][k] for k in both}} for e in (one, known))
        changed = [key for key in here if here[key] != there.get(key)]
        if changed:
            fail(
                f"{one['run']} is in {file} with another {', '.join(changed)}",
                "remove its entry there, or name another record with --record",
            )
    return [found[name] for name in sorted(found)]


def make_record(
    name: str,
    entries: list[Entry],
    before: dict[str, Any],
    missing: dict[str, list[str]],
    command: str,
) -> dict[str, Any]:
    """Return the record: entries, and what is computed from nothing but them."""
    tasks = by_task(group([as_run(one) for one in entries]))
    first = entries[0]["settings"].items()
    shared = {k: v for k, v in first if all(one["settings"].get(k, ()) == v for one in entries)}
    own = [{k: v for k, v in one["settings"].items() if k not in shared} for one in entries]
    earlier = before["environment"]["command"].split(" && ") if "runs" in before else []
    missing, known = {**before.get("missing", {}), **missing}, {one["run"] for one in entries}
    left = {k: [one for one in names if one not in known] for k, names in missing.items()}
    return {
        "what": name,
        "environment": {
            **environment(),
            "command": " && ".join(dict.fromkeys([*earlier, command])),
            "commit": ", ".join(sorted({one["commit"] for one in entries})),
        },
        "settings": shared,
        "missing": {k: names for k, names in left.items() if names},
        "results": [result(cell, members) for members in tasks.values() for cell in members],
        "differences": [row for members in tasks.values() for row in differences(members)],
        "ratio": {},
        "runs": [{**one, "settings": part} for one, part in zip(entries, own, strict=True)],
    }


def as_run(one: Entry) -> Run:
    """Return a run as `fastssl report` reads it from its folder, as far as it is recorded."""
    table = {name: list(column) for name, column in one["evaluations"].items()}
    table["seconds"] = [60 * minutes for minutes in table.pop("minutes")]
    rows = zip(*table.values(), strict=True)
    evals = [MetricsLine.model_validate(dict(zip(table, row, strict=True))) for row in rows]
    summary = Summary(seconds_per_step=one["ms_per_step"] / 1000)
    path, settings, inputs = Path(one["run"]), dict(one["settings"]), one["inputs"]
    return Run(path, path.name, settings, "finished", summary, inputs=inputs, evals=evals)


def seed(run: Run) -> int:
    """Return the seed of a run."""
    return int(run.config["seed"])


def result(cell: Cell, members: list[Cell]) -> dict[str, Any]:
    """Return the line of a cell, over its seeds; `members` are the cells of its task."""
    runs = sorted(cell.used, key=seed)
    rows = [run_metrics(run) for run in runs]
    final, line, base = cell.stat("last_error"), curve(cell, "evals", "error"), baseline(members)
    assert final is not None and line is not None, "only runs with an evaluation are recorded"
    line["minutes"] = [round(seconds / 60, 3) for seconds in line["t"]]
    return {
        "name": cell.name,
        "task": cell.task,
        "algo": {key.removeprefix("algo."): value for key, value in cell.unusual.items()},
        "rate": round(final.mean, 4),
        "unit": "% error at the end, mean over seeds",
        "spread": final.std and round(final.std, 4),
        "seeds": [seed(run) for run in runs],
        "final": [row["last_error"] for row in rows],
        "best": [row["best_error"] for row in rows],
        "median_of_last_20": [round(row["median_error"], 4) for row in rows],
        "minutes": rounded(statistics.fmean(row["seconds"] for row in rows) / 60),
        "seconds_per_step": statistics.median(row["seconds_per_step"] for row in rows),
        "baseline": base and base.name,
        "to_fixmatch": to_fixmatch(cell, members),
        "curve": {key: line[key] for key in ("x", "minutes", "y", "lo", "hi") if key in line},
    }


def to_fixmatch(cell: Cell, members: list[Cell]) -> dict[str, Any] | None:
    """Return what a cell takes until FixMatch's final accuracy, over the seeds that reach it."""
    level = next((level for level in levels(members) if level.steps), None)
    steps, time = reached(cell, level.accuracy) if level else (None, None)
    if level is None or steps is None or time is None:
        return None
    return {
        "error": round(100 - level.accuracy, 4),
        "steps": round(steps.mean, 1),
        "minutes": rounded(time.mean / 60),
        "images": images_seen(cell.used[0].config, steps.mean),
        "seeds": steps.n,
    }


def differences(members: list[Cell]) -> list[dict[str, Any]]:
    """Return how the final errors of cells differ, seed by seed; FixMatch's is subtracted."""
    base = baseline(members)
    errors = {
        cell.name: {seed(run): run.evals[-1].error or 0.0 for run in cell.used}
        for cell in sorted(members, key=lambda cell: cell is base)
    }
    found = []
    for (name, ours), (other, theirs) in combinations(errors.items(), 2):
        seeds = sorted(ours.keys() & theirs.keys())
        value = stat(ours[one] - theirs[one] for one in seeds)
        if value:
            row = {"task": members[0].task, "name": name, "minus": other, "seeds": seeds}
            std = value.std and round(value.std, 4)
            found.append({**row, "mean": round(value.mean, 4), "std": std, "n": value.n})
    return found


if __name__ == "__main__":
    main()
