"""The lines at the start of a run, the table at its end, and summary.json."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from fastssl.engine.build import Run
from fastssl.engine.progress import LAST, TrainingProgress
from fastssl.tracking.console import clock

FIGURES = ("top5_error", "precision", "recall", "f1", "auc", "ece", "class_accuracy")


def summarize(
    run: Run, trip: TrainingProgress, figures: dict[str, Any], status: str
) -> dict[str, Any]:
    """Return what summary.json holds; `status` is finished, interrupted or time is up."""
    config = run.resolved.config
    chosen = "validation split" if len(run.split.validation) else "test set"
    return {
        "status": status,
        "data": run.store.name,
        "algorithm": run.algorithm.name,
        "labels": len(run.split.labeled),
        "seed": config.seed,
        "best_error": trip.best_error if trip.errors else None,
        "best_step": trip.best_step,
        "best_chosen_on": chosen,
        "median_error": trip.median_error,
        "evaluations": len(trip.errors),
        "last_error": trip.errors[-1] if trip.errors else None,
        **{name: figures[name] for name in FIGURES if name in figures},
        "steps": trip.step,
        "seconds": round(trip.seconds, 3),
        "seconds_per_step": trip.train_seconds / trip.step if trip.step else None,
        "images_per_s": round(trip.images_per_s, 1),
        "data_wait": round(trip.data_wait, 5),
        **({"fp16_skipped": int(run.scaler.state["skipped"])} if run.scaler.enabled else {}),
    }


def start_lines(run: Run, out: str, step: int) -> list[str]:
    """Return the six lines that say what will run."""
    config = run.resolved.config
    split, store = run.split, run.store
    held = f", {len(split.validation):,} held out" if len(split.validation) else ""
    parameters = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    unlabeled = config.batch * (config.ratio or run.algorithm.ratio) * run.algorithm.unlabeled
    ranks = f", {run.ranks.world} ranks" if run.ranks.world > 1 else ""
    return [
        f"data    {store.name}: {len(split.labeled):,} labelled, {len(split.unlabeled):,} "
        f"unlabelled{held}, {store.splits['test'].count:,} to test, {store.classes} classes",
        f"learn   {run.algorithm.summary}",
        f"model   {config.model}, {parameters:,} parameters, views of {run.size[0]}x{run.size[1]}",
        f"device  {run.device}, compile {config.compile}{ranks}",
        f"reader  {run.loader.choice}",
        f"run     {out}: steps {step + 1:,} to {config.steps:,}, {config.batch} labelled and "
        f"{unlabeled} unlabelled images each",
    ]


def end_lines(summary: dict[str, Any], path: Path) -> list[str]:
    """Return the table at the end, with the next command to type."""
    rows = [
        *error_rows(summary),
        ("time", f"{clock(summary['seconds'])} for {summary['steps']:,} steps"),
        ("speed", f"{summary['images_per_s']:,.0f} images/s"),
        ("data wait", f"{100 * summary['data_wait']:.2f} % of the training time"),
    ]
    if summary.get("fp16_skipped"):
        rows.append(("fp16 skipped", f"{summary['fp16_skipped']:,} steps, for an overflow"))
    lines = [f"{name:<14}{value}" for name, value in rows]
    if summary["status"] == "finished":
        return [*lines, f"next: fastssl eval {path}"]
    return [*lines, f"{summary['status']} and saved; to go on: {line_to_resume(sys.argv)}"]


def error_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows on the error, or the one that says there is none yet."""
    if not summary["evaluations"]:
        return [("error", "not evaluated yet")]
    count = min(LAST, summary["evaluations"])
    over = f"the last {count} evaluations" if count > 1 else "one evaluation"
    return [
        ("best error", f"{summary['best_error']:.2f} % at step {summary['best_step']:,}"),
        ("  chosen on", str(summary["best_chosen_on"])),
        ("median error", f"{summary['median_error']:.2f} % over {over}"),
        ("last error", f"{summary['last_error']:.2f} %"),
    ]


def line_to_resume(words: list[str]) -> str:
    """Return the line to type where the command was typed, else what to add to it."""
    if words[1:2] != ["train"]:  # from Python, or by a tool of its own
        return "begin it again with resume, with the same settings"
    return shlex.join(["fastssl", *words[1:], *([] if "--resume" in words else ["--resume"])])
