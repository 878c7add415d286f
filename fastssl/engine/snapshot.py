"""From a run to the content of a checkpoint, and back."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict
from typing import Any, cast

import torch
from pydantic import TypeAdapter
from torch import Tensor

from fastssl import plugins
from fastssl.config.resolve import ResolvedConfig
from fastssl.engine import checkpoint
from fastssl.engine.build import Learner, TrainingData
from fastssl.engine.build_data import changed_inputs
from fastssl.engine.checkpoint import CheckpointContent, SavedProgress
from fastssl.engine.progress import TrainingProgress
from fastssl.errors import DataError, UserError
from fastssl.tracking.run_dir import RunFolder
from pipelines.store.store import default_place, open_store

logger = logging.getLogger(__name__)


def snapshot(
    learner: Learner, data: TrainingData, progress: TrainingProgress, quality: Tensor
) -> CheckpointContent:
    """Copy all that a restart needs to the CPU; waits for the device.

    `quality` are the learner's pseudo-label counts, averaged over ranks. Random numbers are keyed
    by seed and step and need no state.
    """
    store = data.store
    content: CheckpointContent = {
        "model": learner.model.state_dict(),
        "ema": learner.ema.model.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "scaler": learner.scaler.state,
        "state": learner.state,
        "quality": quality,
        "trip": cast(SavedProgress, asdict(progress)),
        "config": learner.resolved.as_dict(),
        "store": store.manifest_digest,
        "store_name": store.name,
        "inputs": data.inputs,
        "heads": dict(learner.algorithm.heads),
        "classes": list(store.class_names),
        "preprocessing": {
            "size": list(data.size),
            "mean": list(data.loader.mean),
            "std": list(data.loader.std),
            "stored": store.splits.get("test", store.splits["train"]).height,
            "resize": store.manifest.resize,
            "interpolation": store.manifest.interpolation,
        },
    }
    copied: CheckpointContent = _copy(content)
    return copied


def _copy(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.detach().to("cpu", copy=True)
    if isinstance(item, dict):
        return {key: _copy(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_copy(value) for value in item]
    return item


def resume_from(
    learner: Learner,
    data: TrainingData,
    content: CheckpointContent,
    folder: RunFolder,
    accept_changes: bool,
) -> TrainingProgress:
    """Load a checkpoint into the learner; refuse it if an input of the run has changed."""
    saved = {"store": content["store"], **content.get("inputs", {})}
    changed = changed_inputs(saved, data.inputs, data.store)
    shown = {"store": data.store.path, "fastssl": f"version ({saved.get('fastssl')})"}
    given = {name: shown.get(name, getattr(learner.resolved.config, name, "")) for name in changed}
    refuse_changes(folder, given, accept_changes)
    if "pretrained" in saved:  # for the next checkpoints, if the file is gone
        data.inputs.setdefault("pretrained", saved["pretrained"])
    return restore(learner, content)


def refuse_changes(folder: RunFolder, changed: dict[str, Any], accept_changes: bool) -> None:
    """Raise if inputs of a run, given by name, have changed; only warn if that is accepted."""
    if not changed:
        return
    shown = ", ".join(f"{name} {what}" for name, what in changed.items())
    if not accept_changes:
        raise DataError(
            f"{folder.path} was started with another content of: {shown}",
            "give what it was started with, or another --out; --accept-changes goes on with it",
        )
    logger.warning("changed since the run was started: %s", shown)


def check_finished(resolved: ResolvedConfig, folder: RunFolder, accept_changes: bool) -> None:
    """Raise if a finished run learned from other files than its settings name now.

    It needs neither its checkpoints nor its files any more: what is gone is not compared.
    """
    config = resolved.config
    hashes, store, saved = {}, None, {}
    with suppress(UserError):
        content = checkpoint.newest(folder, logger.debug)
        saved = content.get("inputs", {}) if content else {}
        hashes = plugins.file_hashes(resolved.as_dict())
    with suppress(UserError):
        store = open_store(config.store or default_place(config.data))
    changed = {
        key: getattr(config, key) for key in hashes if saved.get(key, hashes[key]) != hashes[key]
    }
    if store and "store" in saved and not store.matches(saved["store"]):
        changed["store"] = store.path
    refuse_changes(folder, changed, accept_changes)


def restore(learner: Learner, content: CheckpointContent) -> TrainingProgress:
    """Load a checkpoint into a learner; return the progress that it holds."""
    for module, weights in ((learner.model, content["model"]), (learner.ema.model, content["ema"])):
        checkpoint.check_fit(module.state_dict(), weights, "network")
        module.load_state_dict(weights)
    learner.ema.copy_buffers()  # it was saved with those of its evaluation
    for own, saved, what in (
        (learner.state, content["state"], "algorithm"),
        (learner.scaler.state, content["scaler"], "fp16 scale"),
        ({"sums": learner.quality.sums}, {"sums": content["quality"]}, "pseudo-label counts"),
    ):
        checkpoint.check_fit(own, saved, what)
        for key, value in saved.items():
            own[key].copy_(value)
    try:
        learner.optimizer.load_state_dict(content["optimizer"])
        progress = TypeAdapter(TrainingProgress).validate_python(content["trip"])
    except (ValueError, KeyError, TypeError) as error:  # pydantic's is a ValueError
        reason = str(error).splitlines()[0]
        fix = "use a checkpoint of the same run, or start anew with another --out"
        raise DataError(f"the checkpoint does not fit this run: {reason}", fix) from error
    checkpoint.check_fit(*moments(learner.optimizer), "optimizer")
    return progress


def moments(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return tensors of the shapes that the optimizer's state must have, and the state, by name."""
    adamw = isinstance(optimizer, torch.optim.AdamW)
    expected: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}
    for number, (parameter, entry) in enumerate(optimizer.state.items()):
        shapes = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
        if not adamw:  # without momentum, SGD has no state
            has_state = entry.get("momentum_buffer") is not None
            shapes = {"momentum_buffer": parameter} if has_state else {}
        expected |= {f"{number}.{name}": shape for name, shape in shapes.items()}
        found |= {f"{number}.{name}": entry[name] for name in shapes if name in entry}
    return expected, found
