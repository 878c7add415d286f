"""Which of the runs is the better one, and on which images that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastssl.inference.evaluate import evaluate
from fastssl.tracking.metrics import read_metrics
from fastssl.tracking.run_dir import RunFolder
from pipelines.store.store import Store

Row = dict[str, Any]


def measure(kind: str, run: Path, store: Store, *, trust_code: bool = False) -> Row:
    """Return a line of the table: the accuracy of a run on test and validation images."""
    row: Row = {"model": kind, "run": str(run), "test images": None, "accuracy": None}
    if "test" in store.splits:
        metrics = evaluate(run, trust_code=trust_code)
        row |= {"test images": metrics["images"], "accuracy": round(metrics["accuracy"], 2)}
    lines = read_metrics(RunFolder(run).metrics, "eval")
    errors = [line["validation_error"] for line in lines if "validation_error" in line]
    if errors:  # the best checkpoint is that with the lowest
        row["validation"] = round(100 - min(errors), 2)
    return row


def choose(rows: list[Row]) -> tuple[Row, str]:
    """Return the better run, and why; an equal accuracy leaves the probe, which is the first."""
    first, *others = rows
    if not others:
        return first, "the only model"
    key = "validation" if all("validation" in row for row in rows) else "accuracy"
    best = max(rows, key=lambda row: float(row[key]))
    other = next(row for row in rows if row is not best)
    if key == "validation":
        images = "the validation images, which neither was trained on"
    else:
        images = f"{best['test images']:,} test images"
    if best[key] == other[key]:
        return best, f"both reach {best[key]:.2f} % on {images}"
    bias = "" if key == "validation" else "; chosen on them, the better one is slightly too high"
    return best, f"{best[key]:.2f} % against {other[key]:.2f} % on {images}{bias}"
