"""Turn the runs of a sweep into one record, and draw its curves.

    fastssl sweep cifar10_cpu --jobs 2 --out runs/cifar10_cpu
    python tools/sweep_record.py runs/cifar10_cpu

writes tools/results/cifar10-cpu.json and docs/images/cifar10-cpu.svg: the error of every algorithm
by step, the mean over seeds within the range of the seeds. Runs made by another line than the
one above: give it with --command.
"""

import argparse
import json
import statistics
import sys
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastssl.profiling.measure import environment
from fastssl.report.cells import Cell, group
from fastssl.report.load import read_all
from fastssl.report.plots import curve
from fastssl.report.run_metrics import run_metrics

RESULTS = Path(__file__).resolve().parent / "results"
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 56, 150, 16, 44


def main() -> None:
    """Write the record and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of a sweep")
    parser.add_argument("--command", help="what made the runs; default: the line above")
    given = parser.parse_args()
    folder = given.runs
    found = read_all([folder])
    unfinished = [run.name for run in found.runs if not run.complete]
    if unfinished or found.missing or found.problems:
        sys.exit(f"not all cells are done: {unfinished or found.missing or found.problems}")
    cells = group(found.runs)
    name = folder.name.replace("_", "-")
    record = {
        "what": name,
        "environment": {
            **environment(),
            "command": given.command
            or f"fastssl sweep {folder.name} --jobs 2 --out runs/{folder.name}",
            "commit": one_commit(cells),
        },
        "settings": settings(cells),
        "results": [result(cell) for cell in cells],
        "ratio": {},
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (IMAGES / f"{name}.svg").write_text(draw(record["results"]))


def one_commit(cells: list[Cell]) -> str:
    """Return the commit that all runs were made by."""
    commits = {str(run.environment.get("commit") or "") for cell in cells for run in cell.runs}
    if "" in commits:
        sys.exit("a run does not say which commit made it: train from a checkout of the repository")
    if len(commits) != 1:
        sys.exit(f"the runs are of several commits: {sorted(commits)}")
    return commits.pop()


def settings(cells: list[Cell]) -> dict[str, Any]:
    """Return the keys that all runs share and that decide the figures."""
    keys = ("data", "labels", "image_size", "model", "steps", "batch", "ratio", "ema")
    first = cells[0].runs[0].config
    return {key: first[key] for key in (*keys, "bn_momentum", "threads")}


def result(cell: Cell) -> dict[str, Any]:
    """Put the seeds of one cell into one line."""
    runs = sorted(cell.runs, key=lambda run: int(run.config["seed"]))
    measured = [run_metrics(run) for run in runs]
    best = [round(row["best_error"], 4) for row in measured]
    line = curve(cell, "evals", "error")
    assert line is not None
    return {
        "name": cell.name,
        "algo": {key.removeprefix("algo."): value for key, value in cell.unusual.items()},
        "rate": statistics.median(best),
        "unit": "% error, best, median over seeds",
        "spread": round(max(best) - min(best), 4),
        "best": best,
        "median_of_last_20": [round(row["median_error"], 4) for row in measured],
        "seconds_per_step": statistics.median(run.summary.seconds_per_step or 0.0 for run in runs),
        "curve": {key: line[key] for key in ("x", "y", "lo", "hi") if key in line},
    }


def draw(results: list[dict[str, Any]]) -> str:
    """Draw the curves as SVG: readable on white and on black, with names at their ends."""
    steps = max(result["curve"]["x"][-1] for result in results)
    values = [y for r in results for key in ("y", "lo", "hi") for y in r["curve"].get(key, [])]
    low, high = 5 * (min(values) // 5), 5 * (max(values) // 5 + 1)

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / steps, 1)

    def y(error: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - error) / (high - low), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for error in range(int(low), int(high) + 1, 10 if high - low > 30 else 5):
        parts.append(f'<path d="M{LEFT} {y(error)}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(error) + 4}" text-anchor="end">{error}</text>')
    for part in range(5):
        step = steps * part // 4
        place = HEIGHT - BOTTOM + 18
        parts.append(f'<text x="{x(step)}" y="{place}" text-anchor="middle">{step:,}</text>')
    parts.append(f'<text x="{x(steps / 2)}" y="{HEIGHT - 8}" text-anchor="middle">step</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        "test error, %</text>"
    )
    parts += curves(results, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def curves(results: list[dict[str, Any]], x: Any, y: Any) -> list[str]:
    """Draw bands, lines and names; names that would touch are moved apart."""
    parts, taken = [], -100.0
    ordered = sorted(results, key=lambda result: -float(result["curve"]["y"][-1]))
    for place, result in enumerate(ordered):
        line, colour = result["curve"], COLOURS[place % len(COLOURS)]
        if "lo" in line:
            there = [f"{x(s)} {y(v)}" for s, v in zip(line["x"], line["hi"], strict=True)]
            back = [f"{x(s)} {y(v)}" for s, v in zip(line["x"], line["lo"], strict=True)]
            path = "M" + "L".join([*there, *reversed(back)]) + "Z"
            parts.append(f'<path d="{path}" fill="{colour}" opacity="0.15"/>')
        path = "M" + "L".join(f"{x(s)} {y(v)}" for s, v in zip(line["x"], line["y"], strict=True))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        taken = max(taken + 15, y(line["y"][-1]) + 4)
        name = escape(result["name"].split()[0])
        parts.append(
            f'<text x="{WIDTH - RIGHT + 8}" y="{taken}" fill="{colour}">'
            f"{name} {line['y'][-1]:.1f}</text>"
        )
    return parts


if __name__ == "__main__":
    main()
