"""Cross-fitting: how many trusted pseudo-labels are right, without a validation or test set.

The labels are divided into folds. For each fold the run is trained again, with its own settings
and without the labels of the fold; that model is then compared with them. So every label is
compared with a model that has not seen it.

The images of the fold are unlabeled images of that training, as those that the pseudo-labels are
for: its model has learned from its own predictions for both. So it is as confident about the ones
as about the others, and the shift that `precision` bounds by a second estimate does not occur.
Nor is an error rate divided among checkpoints: no label of a fold chooses that of its model.

The models of the folds learn from fewer labels than the run. Where labels are few, they are worse
than its model, and the true precision may lie above the interval; it does not lie below it for
this reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl import plugins
from fastssl.config.resolve import ResolvedConfig, saved_values
from fastssl.config.schema import keys_that_may_differ
from fastssl.engine.build_data import changed_inputs, input_hashes, make_data
from fastssl.engine.launch import run_training
from fastssl.errors import ConfigError, DataError, writing
from fastssl.inference.precision import (
    LEVEL,
    NO_LABEL,
    NONE_TRUSTED,
    Precision,
    estimate_precision,
    interval,
)
from fastssl.inference.predictor import Predictor
from fastssl.inference.pseudo_label import PseudoLabels, pseudo_label
from fastssl.inference.store_match import match_labels
from fastssl.inference.trained_model import trained_code
from fastssl.tracking.console import clock, messages, only_progress
from fastssl.tracking.run_dir import COMPLETE, RunFolder
from fastssl.version import __version__
from pipelines.files import read_json, write_atomic
from pipelines.sampling.rng import permutation
from pipelines.store.store import Store

logger = logging.getLogger(__name__)

Indices = npt.NDArray[np.int64]
Retrain = Callable[[ResolvedConfig, Path], None]  # makes a run folder, or completes it
FOLDER = "cross-fit"  # within the run folder, where a report looks for no runs
TRAININGS = 3  # that are suggested
REFITS = 5  # of the classifier of a probe, which take seconds and need not be asked for


def expected_precision(
    model: Predictor, found: PseudoLabels, floor: float, folds: int | None, refit: Retrain
) -> Precision | str:
    """Return the interval, or the reason why there is none.

    It comes from held-out labels if there are any and `folds` is None. `refit` makes the run of a
    fold if the run is a probe's.
    """
    store, is_probe = found.store, RunFolder(model.run).probe.is_file()
    result: Precision | str = NO_LABEL
    if folds is None:
        result = estimate_precision(model, store, found.thresholds, found.trusted)
        if result != NO_LABEL:
            return result
    elif folds < 2:
        raise ConfigError(f"--cross-fit {folds} leaves no fold to train on", "type --cross-fit 3")
    usable, why = withholdable(model, store)
    if folds is not None and not len(usable):
        raise ConfigError(
            f"cross-fitting over {folds} models is not possible: {why}",
            "leave that option out, or train with more labels",
        )
    if not found.trusted.any():
        return NONE_TRUSTED
    if not len(usable):
        return f"{result}, and cross-fitting is not possible: {why}"
    chosen = make_folds(model, store, usable, folds or (REFITS if is_probe else TRAININGS))
    if folds is None and not is_probe:
        about = clock(float(summary_of(model.run)["seconds"]))
        trains = f"which trains {len(chosen)} models of about {about} each"
        return f"{result}; type --cross-fit {len(chosen)}, {trains}"
    return cross_fit(model, found, floor, chosen, refit if is_probe else train_again)


def withholdable(model: Predictor, store: Store) -> tuple[Indices, str]:
    """Return the images whose labels may be withheld, and what limits their number.

    A label that is the only one of its class is never withheld: nothing would be left of it.
    """
    none, config = np.empty(0, np.int64), model.resolved.config
    if not model.trained_on(store):
        return none, "the run was trained on another store"
    if store.manifest.pseudo_labels:
        return none, "some labels of the store were chosen by a model"
    if config.validation:
        return none, "the run holds out validation images, whose labels show the same"
    if model.resolved.algorithm.labeled == "all":
        return none, f"{model.resolved.algorithm.name} needs every label"
    if not summary_of(model.run):
        return none, "the run is not trained to its end"
    labeled = make_data(model.resolved, store, 1)[0].labeled
    labels = store.labels("train")[labeled]
    usable = labeled[np.bincount(labels)[labels] > 1]
    return usable, "" if len(usable) else "no class has two labels"


def make_folds(model: Predictor, store: Store, usable: Indices, count: int) -> list[Indices]:
    """Return the images whose labels each fold withholds, spread evenly over the classes.

    A fold withholds of all classes at once, so that no class becomes rare in comparison. Folds of
    one class after the other would show a poor model as worse than it is: with two labels a class,
    it would then prefer every class to the one that is withheld.
    """
    labels, config = store.labels("train")[usable], model.resolved.config
    seed = config.seed if config.split_seed is None else config.split_seed
    folds = np.zeros(len(usable), np.int64)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        folds[own[permutation(seed, "fold", int(label), len(own))]] = np.arange(len(own)) % count
    return [usable[folds == fold] for fold in range(folds.max() + 1)]


def cross_fit(
    model: Predictor, found: PseudoLabels, floor: float, folds: list[Indices], retrain: Retrain
) -> Precision | str:
    """Train the models of all folds, as far as that was not done, and compare them with labels."""
    store, parts = found.store, []
    place = folder_of(model, store, len(folds))
    truth = match_labels(model, store, "train")
    with messages():
        missing = sum(not summary_of(place / f"fold-{number}") for number in range(len(folds)))
        total = clock(missing * float(summary_of(model.run)["seconds"]))
        logger.info(f"cross-fitting: {missing} of {len(folds)} models to train, about {total}")
        for number, withheld in enumerate(folds):
            folder = place / f"fold-{number}"
            if not summary_of(folder):
                logger.info(f"model {number + 1} of {len(folds)}: {folder}")
                with only_progress():  # the rest is in its log.txt
                    retrain(fold_config(model, store, withheld, folder), folder)
            # A fold of somebody else's run folder is trusted no more than the run.
            fold = Predictor(
                folder, model.which, str(model.device.device), trust_code=model.trusts_code
            )
            parts.append(pseudo_label(fold, store, floor, among=withheld))
    right = np.concatenate([part.label == truth[part.indices] for part in parts])
    trusted = np.concatenate([part.trusted for part in parts])
    if not trusted.any():
        return f"none of the {len(right):,} withheld images reaches the thresholds"
    hits, count = int(right[trusted].sum()), int(trusted.sum())
    low, high = interval(hits, count, int(found.trusted.sum()), 1 - LEVEL)
    accuracy = float(right.mean())
    return Precision(low, high, len(right), count, hits, accuracy, "withheld", len(folds))


def folder_of(model: Predictor, store: Store, count: int) -> Path:
    """Return the folder for the models of the folds; it is another one if their inputs change."""
    saved = saved_values(RunFolder(model.run).read_config())
    kept = {key: saved[key] for key in saved.keys() - keys_that_may_differ("resume")}
    about = [kept, model.content.get("inputs"), store.fingerprint, __version__]
    text = json.dumps(about, sort_keys=True, default=str)
    return model.run / FOLDER / f"{count}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def fold_config(model: Predictor, store: Store, withheld: Indices, folder: Path) -> ResolvedConfig:
    """Return the configuration of the run without the withheld labels, and write the others."""
    check_inputs(model, store)
    labeled = np.setdiff1d(make_data(model.resolved, store, 1)[0].labeled, withheld)
    file = folder.with_suffix(".txt")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, "".join(f"{index}\n" for index in labeled).encode())
    changes = {
        "store": str(store.path),
        "label_file": str(file.absolute()),
        "labels": "all",  # those of the file
        "imbalance": 1.0,  # which the choice of the file has already
        "device": str(model.device.device),
        "tensorboard": False,
    }
    config = model.resolved.config.model_copy(update=changes)
    return replace(model.resolved, config=config)


def check_inputs(model: Predictor, store: Store) -> None:
    """Raise if the run cannot be trained again as it was."""
    # An algorithm from a file was not loaded if it is not trusted: another one stands in for it.
    if not model.trusts_code and "algorithm" in plugins.code_files(model.resolved.as_dict()):
        folder = RunFolder(model.run)
        saved = saved_values(folder.read_config())
        code = {"algorithm": trained_code(folder, model.content, "algorithm", saved)}
        plugins.require_trust(code, folder.config, trust_code=False)
    hashes = {"store": store.fingerprint, **model.content.get("inputs", {})}
    changed = changed_inputs(hashes, input_hashes(model.resolved, store), store)
    if "pretrained" in changed:
        raise DataError(
            f"{model.resolved.config.pretrained} is not what {model.run} was started from",
            "put the weights back that it was started from",
        )


def train_again(resolved: ResolvedConfig, folder: Path) -> None:
    """Train or resume the run of a fold; end the process if a signal has stopped it."""
    code = run_training(resolved, folder, True, False)
    if code:
        raise KeyboardInterrupt if code == 128 + signal.SIGINT else SystemExit(code)


def summary_of(run: Path) -> dict[str, Any]:
    """Return the summary of a run that needs no more training, else {}."""
    try:
        summary = read_json(RunFolder(run).summary)
        complete = summary["status"] in COMPLETE and float(summary["seconds"]) >= 0
    except (OSError, DataError, KeyError, TypeError, ValueError):
        return {}
    return dict(summary) if complete else {}
