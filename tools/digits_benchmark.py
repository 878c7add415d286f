"""Train rows of algorithms on the digits with three seeds each and write one record.

    python tools/digits_benchmark.py --name digits-algorithms [ROW ...] [KEY=VALUE ...]

A row is an algorithm, with settings of its own after plus signs: `flexmatch+algo.forward=split`.
KEY=VALUE holds for all rows. Runs that are done are not run again. Two runs go side by side
with one thread each, so that the seconds a step of all rows compare.

Runs of 500 steps want `ema=0.95`: at 0.99 the averaged weights lag by a hundred steps, so that
Mean Teacher is held back and no averaged network fits its student's BatchNorm statistics.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastssl.algorithms import ALGORITHMS
from fastssl.profiling.measure import environment

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    """Run what is missing and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="algorithms and KEY=VALUE")
    parser.add_argument("--name", default="digits-algorithms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows = [row for row in options.rows if "=" not in row.split("+")[0]] or list(ALGORITHMS)
    shared = [row for row in options.rows if "=" in row.split("+")[0]]
    cells = [(row, seed) for seed in range(options.seeds) for row in rows]
    folder = options.runs / options.name
    with ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda cell: train(folder, *cell, shared), cells))
    summaries: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
    for (row, _), summary in zip(cells, done, strict=True):
        summaries[row].append(summary)
    record = {
        "what": options.name,
        "environment": environment(),
        "settings": shared,
        "results": [result(row, found) for row, found in summaries.items()],
        "ratio": {},
    }
    (RESULTS / f"{options.name}.json").write_text(json.dumps(record, indent=2) + "\n")


def train(folder: Path, row: str, seed: int, shared: list[str]) -> dict[str, Any]:
    """Train one cell, or find it done; return its summary."""
    out = folder / f"{row.replace('+', ',')}-s{seed}"
    algorithm, *own = row.split("+")
    words = [f"algorithm={algorithm}", f"seed={seed}", "threads=1", "loader_threads=1"]
    command = [sys.executable, "-m", "fastssl", "train", "digits", *words, *shared, *own]
    log = folder.parent / f"{folder.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        subprocess.run([*command, "--out", str(out), "--resume"], check=True, stderr=file)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    print(f"{row} seed {seed}: best {summary['best_error']:.2f} %", flush=True)
    return summary


def result(row: str, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the seeds of one row into one line."""
    best = [round(s["best_error"], 4) for s in summaries]
    median = [round(s["median_error"], 4) for s in summaries]
    recalls = [[round(x, 4) for x in s["class_accuracy"]] for s in summaries]
    return {
        "name": row,
        "rate": statistics.median(best),
        "unit": "% error, best, median over seeds",
        "spread": round(max(best) - min(best), 4),
        "best": best,
        "median_of_last_20": median,
        "class_accuracy": recalls,
        "seconds_per_step": statistics.median(s["seconds_per_step"] for s in summaries),
        "steps": summaries[0]["steps"],
    }


if __name__ == "__main__":
    main()
