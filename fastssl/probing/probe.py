"""The verb `probe`: classifiers on frozen features, and an ordinary run folder of the best one."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastssl.config.resolve import ResolvedConfig, load, parse_overrides
from fastssl.config.schema import RunConfig
from fastssl.distributed import process_group
from fastssl.engine import checkpoint, devices
from fastssl.engine.build import Run, assemble
from fastssl.engine.build_data import find_store, make_data, normalization
from fastssl.engine.evaluation import compute_metrics, confusion
from fastssl.engine.launch import finish, write_start
from fastssl.engine.loop import Training
from fastssl.engine.progress import EvaluationMetrics, TrainingProgress
from fastssl.engine.summary import pretraining
from fastssl.errors import ConfigError, DataError
from fastssl.models.classifier import classifier_of
from fastssl.probing import graph, heads
from fastssl.probing.features import FrozenNetwork, Rows, compute_features
from fastssl.probing.heads import Linear, Predict, Query, Score, Task
from fastssl.tracking import tensorboard
from fastssl.tracking.console import messages
from fastssl.tracking.metrics import MetricsLog
from fastssl.tracking.progress_bar import Display
from fastssl.tracking.run_dir import RunFolder
from pipelines.datasets import DATASETS
from pipelines.files import write_json
from pipelines.sampling.split import Split
from pipelines.store.store import Store

logger = logging.getLogger(__name__)

FIXED = {"algorithm": "supervised", "freeze": "backbone", "steps": 1, "compile": "off"}
MODEL = "timm:tf_efficientnet_lite0"  # for one's own images, as in configs/own_pretrained.yaml


class Outcome(NamedTuple):
    """A line of the table: a classifier and its metrics, {} without images to evaluate on."""

    name: str
    metrics: EvaluationMetrics
    score: Score | None  # of the cross-validation
    seconds: float


def probe(
    store: str,
    out: Path | None = None,
    overrides: list[str] | dict[str, Any] | None = None,
    *,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Fit classifiers to frozen features, write the best as a run, and return the table."""
    return fit_probe(configure(store, overrides, trust_code=trust_code), out)


def refit(resolved: ResolvedConfig, folder: Path) -> None:
    """Make the run of a probe from its configuration; what an interrupted one left is replaced."""
    fit_probe(resolved, folder, replace=True)


def fit_probe(
    resolved: ResolvedConfig, out: Path | None, *, replace: bool = False
) -> dict[str, Any]:
    """Fit classifiers to frozen features, write the best as a run, and return the table."""
    began = time.monotonic()
    with process_group.joined() as group, messages(quiet=group.ranks.rank != 0):
        if group.ranks.world > 1:
            raise ConfigError("a probe runs in one process", "type fastssl probe without torchrun")
        resolved, device = devices.choose_for_run(resolved, group)
        found = find_store(resolved)
        split = checked_split(resolved, found)
        folder = RunFolder(out or default_folder(resolved, found))
        if not replace and folder.path.is_dir() and any(folder.path.iterdir()):
            raise ConfigError(f"{folder.path} is not empty", "take another --out")
        folder.claim(resume=replace)
        try:
            run = assemble(resolved, device, store=found)
            rows = compute_features(network_of(run), found)
            task = make_task(found, split, rows["train"])
            queries = evaluated(run, rows)
            outcomes, linear, note = compare(task, queries, resolved.config.seed)
            seconds = time.monotonic() - began
            table = [as_row(one, len(split.labeled)) for one in outcomes]
            write_run(run, folder, linear, task, outcomes[-1].metrics, seconds)
            write_json(folder.probe, {"heads": table, "note": note})
        finally:
            folder.release()
    return {"run": str(folder.path), "heads": table, "note": note, "seconds": round(seconds, 3)}


def configure(
    store: str, overrides: list[str] | dict[str, Any] | None, *, trust_code: bool = False
) -> ResolvedConfig:
    """Return the configuration of a probe: that of a standard dataset, or `own` with its store."""
    given = overrides if isinstance(overrides, dict) else parse_overrides(overrides or [])
    for key in FIXED.keys() & given.keys():
        raise ConfigError(f"a probe has no {key}: it fits classifiers only", f"remove {key}")
    if store in DATASETS:
        return load(store, {**given, **FIXED}, trust_code=trust_code)
    place: dict[str, Any] = {"store": store, "model": MODEL, **given}
    if str(place["model"]).startswith(("timm:", "torchvision:")):
        place = {"pretrained": True, **place}
    return load("own", {**place, **FIXED}, trust_code=trust_code)


def default_folder(resolved: ResolvedConfig, store: Store) -> Path:
    """Return runs/NAME-probe-LABELS-sSEED."""
    labels = str(resolved.config.labels).replace("/", "-per-")
    return Path("runs") / f"{Path(store.name).name}-probe-{labels}-s{resolved.config.seed}"


def checked_split(resolved: ResolvedConfig, store: Store) -> Split:
    """Return the split that a training would have; refuse one that no classifier fits."""
    place = shlex.quote(str(store.path))
    fix = (
        f"fastssl choose {place} -n 25 lists images to label; then convert them with --labels FILE"
    )
    if not (store.labels("train") >= 0).any():
        raise DataError(f"{store.path} has no labeled image", fix)
    split, _ = make_data(resolved, store, 1)
    used = np.unique(store.labels("train")[split.labeled])
    if len(used) < 2:
        raise DataError(f"the labeled images of {store.path} are of {len(used)} class", fix)
    return split


def network_of(run: Run) -> FrozenNetwork:
    """Return the network of a run and the preprocessing of its evaluations."""
    learner, data = run
    config = learner.resolved.config
    if classifier_of(learner.model, "probe").bias is None:
        raise ConfigError(
            f"the classifier of {config.model} has no bias, which a probe fits",
            "build its Linear layer with bias=True",
        )
    report_weights(config, data.store, data.size)
    return FrozenNetwork(
        learner.model.eval(),
        config,
        learner.device,
        data.size,
        *normalization(config, data.store),
    )


def report_weights(config: RunConfig, store: Store, size: tuple[int, int]) -> None:
    """Log that weights are random, or that they were trained on other images than the store's."""
    if not config.pretrained:
        logger.warning("the weights of %s are random; pretrained=FILE gives better", config.model)
    for line in pretraining(config, store, size):
        logger.info("%s", line)


def make_task(store: Store, split: Split, rows: Rows) -> Task:
    """Return the features that a training would see: all but those of validation images."""
    seen = np.union1d(split.labeled, split.unlabeled)
    space = graph.Space.of(rows if len(seen) == len(rows) else graph.Selection(rows, seen))
    labels = store.labels("train")[split.labeled]
    labeled = np.searchsorted(seen, split.labeled)
    return Task(space, graph.neighbor_graph(space), labeled, labels, store.classes)


def evaluated(run: Run, rows: dict[str, Rows]) -> dict[str, tuple[Query, Tensor]]:
    """Return the images that a run evaluates on, by split, with their labels."""
    return {
        name: (
            Query(np.asarray(rows[name][batches.indices])),
            torch.from_numpy(run.data.store.labels(name)[batches.indices]),
        )
        for name, batches in run.data.evaluations.items()
    }


def compare(
    task: Task, queries: dict[str, tuple[Query, Tensor]], seed: int
) -> tuple[list[Outcome], Linear, str]:
    """Return a line for each head, the last one for the linear classifier of the best."""
    outcomes: list[Outcome] = []
    fitted: dict[str, Predict] = {}
    for name, (build, settings) in heads.HEADS.items():
        began = time.monotonic()
        score = heads.cross_validate(task, name, seed)
        if name == "linear" and score:
            task = dataclasses.replace(task, c=score.setting)
        fitted[name] = build(task, score.setting if score else settings[0])
        metrics = measure(fitted[name], queries)
        outcomes.append(Outcome(name, metrics, score, time.monotonic() - began))
    best, note = choose_head(task, outcomes)
    began = time.monotonic()
    if best.name == "linear":
        setting = best.score.setting if best.score else heads.HEADS["linear"][1][0]
        linear = heads.fit_linear(task, setting, task.rows, task.labels)
        name = "linear, written"
    else:
        linear = heads.distill(task, fitted[best.name], seed)
        name = f"{best.name} as linear, written"
    metrics = measure(lambda query: linear.probabilities(task.space, query.rows), queries)
    return [*outcomes, Outcome(name, metrics, None, time.monotonic() - began)], linear, note


def choose_head(task: Task, outcomes: list[Outcome]) -> tuple[Outcome, str]:
    """Return the best head by cross-validation, and why it was chosen."""
    compared = [one for one in outcomes if one.score]
    if compared:
        best = max(compared, key=lambda one: one.score or Score(0, 0, 0))
        return best, f"{best.name} was chosen by cross-validation on the labeled images"
    name = "spreading" if len(task.space.rows) > len(task.labels) else "linear"
    best = next(one for one in outcomes if one.name == name)
    why = "no class has two labels to compare heads by"
    return best, f"{name} was chosen without a comparison: {why}"


def measure(predict: Predict, queries: dict[str, tuple[Query, Tensor]]) -> EvaluationMetrics:
    """Return the metrics of a classifier, as an evaluation of a run computes them."""
    found: dict[str, EvaluationMetrics] = {}
    for split, (query, labels) in queries.items():
        logits = torch.from_numpy(np.log(np.maximum(predict(query), 1e-30)))
        found[split] = compute_metrics(logits, labels)
        if logits.shape[1] <= tensorboard.SHOWN:
            found[split]["confusion"] = confusion(logits, labels).tolist()
    metrics = found.get("test") or found.get("train") or EvaluationMetrics()
    if "train" in found:
        metrics["validation_error"] = found["train"]["error"]
    return metrics


def as_row(outcome: Outcome, labels: int) -> dict[str, Any]:
    """Return a line of the table."""
    metrics, score = outcome.metrics, outcome.score
    return {
        "head": outcome.name,
        "accuracy": round(100 - metrics["error"], 2) if metrics else None,
        "ece": round(metrics["ece"], 4) if metrics else None,
        "cross-validation": round(100 * score.accuracy, 2) if score else None,
        "seconds": round(outcome.seconds, 2),
        "labels": labels,
    }


@torch.no_grad()
def write_run(
    run: Run,
    folder: RunFolder,
    linear: Linear,
    task: Task,
    metrics: EvaluationMetrics,
    seconds: float,
) -> None:
    """Put the classifier into the network and write what a training of one step writes."""
    learner, data = run
    weight, bias = linear.unfolded(task.space)
    for model in (learner.model, learner.ema.model):
        classifier = classifier_of(model, "probe")
        scale = learner.resolved.config.temperature  # the network divides its logits by it
        classifier.weight.copy_(torch.from_numpy(scale * weight))
        classifier.bias.copy_(torch.from_numpy(scale * bias))
    progress = TrainingProgress(step=1, train_seconds=seconds, seconds=seconds)
    progress.images = sum(info.count for info in data.store.splits.values())
    write_start(learner, data, folder)
    record = MetricsLog(folder, learner.resolved.config.tensorboard, 0)
    writer = checkpoint.Writer(folder)
    try:
        training = Training(learner, data, progress, Display(1), record, writer, metrics)
        progress.best_step = 1
        if metrics:
            metrics["seconds"] = seconds
            progress.add_evaluation(metrics)
            record.write("eval", 1, dict(metrics))
        training.save(saving=True, improved=True)
        writer.wait()
        finish(training, folder, 0)
    finally:
        data.close()
        writer.close()
        record.close()
