"""The lines at the start of a run, its summary.json, and the table at its end."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from fastssl import models
from fastssl.config.schema import RunConfig
from fastssl.engine import checkpoint, step_memory
from fastssl.engine.build import Learner, TrainingData
from fastssl.engine.build_data import weights_file
from fastssl.engine.loop import Training
from fastssl.engine.progress import LAST
from fastssl.tracking.console import clock
from pipelines.convert.images import interpolation_option
from pipelines.store.store import Store
from pipelines.text import listed

logger = logging.getLogger(__name__)


class RunSummary(TypedDict, total=False):
    """The content of summary.json; errors are in percent."""

    status: str  # finished, interrupted or out of time
    data: str
    algorithm: str
    labels: int
    seed: int
    best_error: float | None  # None before the first evaluation, as the other errors
    best_step: int
    best_chosen_on: str
    median_error: float | None
    evaluations: int
    last_error: float | None
    top5_error: float  # this and the next six are of the last evaluation
    precision: float
    recall: float
    f1: float
    auc: float | None
    ece: float
    class_accuracy: list[float]
    steps: int
    seconds: float
    seconds_per_step: float | None
    images_per_s: float
    data_wait: float  # share of the training time
    fp16_skipped: int  # only with fp16
    checkpoint_seconds: float  # what saving took from the training thread
    first_step_seconds: float | None


SHOWN = 10  # names of classes in a line
FEWER_LABELS = "note    from pretrained weights fewer labels suffice: fastssl train own_pretrained"
LAST_METRICS = ("top5_error", "precision", "recall", "f1", "auc", "ece", "class_accuracy")


def summarize(training: Training, metrics: Mapping[str, Any], status: str) -> RunSummary:
    """Return the content of summary.json; `metrics` are those of the last evaluation."""
    learner, data, progress = training.learner, training.data, training.progress
    chosen_on = "validation split" if len(data.split.validation) else "test set"
    if not data.evaluations:
        chosen_on = ""  # the last model counts as the best
    summary: dict[str, Any] = {
        "status": status,
        "data": data.store.name,
        "algorithm": learner.algorithm.name,
        "labels": len(data.split.labeled),
        "seed": training.config.seed,
        "best_error": progress.best_error if progress.errors else None,
        "best_step": progress.best_step,
        "best_chosen_on": chosen_on,
        "median_error": progress.median_error,
        "evaluations": len(progress.errors),
        "last_error": progress.errors[-1] if progress.errors else None,
        **{name: metrics[name] for name in LAST_METRICS if name in metrics},
        "steps": progress.step,
        "seconds": round(progress.seconds, 3),
        "seconds_per_step": progress.train_seconds / progress.step if progress.step else None,
        "images_per_s": round(progress.images_per_s, 1),
        "data_wait": round(progress.data_wait, 5),
    }
    if learner.scaler.enabled:
        summary["fp16_skipped"] = int(learner.scaler.state["skipped"])
    if training.writer:
        summary["checkpoint_seconds"] = round(training.writer.seconds, 3)
        summary["first_step_seconds"] = training.first_step and round(training.first_step, 3)
    return cast(RunSummary, summary)


def announce(learner: Learner, data: TrainingData, step: int, out: str) -> None:
    """Refuse a run whose steps do not fit into memory, else log what will run."""
    step_memory.check(learner, data.size)
    for line in start_lines(learner, data, out, step):
        logger.info(line)


def start_lines(learner: Learner, data: TrainingData, out: str, step: int) -> list[str]:
    """Return the lines that describe what will run."""
    config, algorithm = learner.resolved.config, learner.algorithm
    split, store = data.split, data.store
    held = f", {len(split.validation):,} held out" if len(split.validation) else ""
    test = store.splits["test"].count if "test" in store.splits else 0
    parameters = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    unlabeled = config.batch * (config.ratio or algorithm.ratio) * algorithm.unlabeled
    ranks = f", {learner.ranks.world} ranks" if learner.ranks.world > 1 else ""
    advice = few_labels(learner, data)
    if unlabeled and step < config.supervised_steps:
        advice.append(f"note    steps up to {config.supervised_steps:,} see labeled images alone")
    if config.data == "own" and not config.pretrained:
        advice.append(FEWER_LABELS)
    advice += pretraining(config, store, data.size)
    if not data.evaluations:
        advice += ["note    no image to evaluate on; validation=0.2 holds out labeled images"]
    return [
        f"data    {store.name}: {len(split.labeled):,} labeled, {len(split.unlabeled):,} "
        f"unlabeled{held}, {test:,} to test, {store.classes} classes",
        f"learn   {algorithm.summary}",
        f"model   {config.model}, {parameters:,} parameters, views of "
        f"{data.size[0]}x{data.size[1]}",
        f"device  {learner.device}, compile {config.compile}{ranks}",
        f"reader  {data.loader.choice}",
        f"run     {out}: steps {step + 1:,} to {config.steps:,}, {config.batch} labeled and "
        f"{unlabeled} unlabeled images each",
        *advice,
    ]


def few_labels(learner: Learner, data: TrainingData) -> list[str]:
    """Return a line on the classes that have fewer labels than `labels=N/class` asks for."""
    wanted, store = str(learner.resolved.config.labels), data.store
    if not wanted.endswith("/class"):
        return []
    counts = np.bincount(store.labels("train")[data.split.labeled], minlength=store.classes)
    few = np.flatnonzero(counts < int(wanted.removesuffix("/class")))
    names = [f"{store.class_names[c]} ({counts[c]})" for c in few]
    return [f"note    fewer labels than {wanted}: {listed(names, SHOWN)}"] if names else []


def pretraining(config: RunConfig, store: Store, size: tuple[int, int]) -> list[str]:
    """Return a line if pretrained weights expect other images than those of a store.

    `size` are height and width of the inputs.
    """
    wanted = trained_interpolation(config)
    if wanted is None:
        return []
    own, kinds = models.own_inputs(config.model), []
    stored, found = store.splits["train"].height, store.manifest.interpolation
    if own and not config.image_size and size[0] < own.size[0]:
        kinds.append((f"{own.size[0]}x{own.size[0]} pixels", f"{size[0]}x{size[1]}"))
        stored = own.size[0]
    if wanted != found:
        kinds.append((f"{wanted} interpolation", found))
    if not kinds:
        return []
    expected, given = (" and ".join(names) for names in zip(*kinds, strict=True))
    options = " ".join(["--size", str(stored), *interpolation_option(wanted)])
    return [
        f"note    {config.model} was trained on images of {expected}, not of {given}: "
        f"fastssl convert SOURCE OUT {options}"
    ]


def trained_interpolation(config: RunConfig) -> str | None:
    """Return the interpolation of the images that pretrained weights were trained on, if known.

    A run has seen what `convert` resized, whatever the library states about its own weights.
    """
    if not config.pretrained:
        return None
    file = weights_file(config)
    if file and file.suffix == ".ckpt" and file.is_file():
        return checkpoint.read(file)["preprocessing"].get("interpolation", "bicubic")
    own = models.own_inputs(config.model)
    return own.interpolation if own else None


def end_lines(summary: RunSummary, path: Path, *, own_model: bool = False) -> list[str]:
    """Return the table at the end of a run, with the next command to type.

    `own_model` says that the model is a file of the user's, which needs consent to be run again.
    """
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
        verb = (
            ["eval", str(path)] if summary["best_chosen_on"] else ["predict", str(path), "IMAGES"]
        )
        verb += ["--trust-code"] if own_model else []
        return [*lines, f"next: {shlex.join(['fastssl', *verb])}"]
    return [*lines, f"{summary['status']} and saved; to go on: {resume_command(sys.argv)}"]


def error_rows(summary: RunSummary) -> list[tuple[str, str]]:
    """Return the rows on the error, or one row if there was no evaluation yet."""
    if not summary["evaluations"]:
        return [("error", "not evaluated yet" if summary["best_chosen_on"] else "not evaluated")]
    count = min(LAST, summary["evaluations"])
    over = f"the last {count} evaluations" if count > 1 else "one evaluation"
    return [
        ("best error", f"{summary['best_error']:.2f} % at step {summary['best_step']:,}"),
        ("  chosen on", str(summary["best_chosen_on"])),
        ("median error", f"{summary['median_error']:.2f} % over {over}"),
        ("last error", f"{summary['last_error']:.2f} %"),
    ]


def resume_command(arguments: list[str]) -> str:
    """Return the command that resumes the run if the command was typed, else how to do it."""
    if arguments[1:2] in (["auto"], ["label"]):  # which resume their trainings by themselves
        return shlex.join(["fastssl", *arguments[1:]])
    if arguments[1:2] != ["train"]:  # called from Python or by another program
        return "start it again with resume, with the same settings"
    resume = [] if "--resume" in arguments else ["--resume"]
    return shlex.join(["fastssl", *arguments[1:], *resume])
