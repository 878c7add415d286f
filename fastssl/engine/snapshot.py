"""From a run to the content of a checkpoint, and back."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, cast

from pydantic import TypeAdapter
from torch import Tensor

from fastssl.engine import checkpoint
from fastssl.engine.build import Learner, TrainingData
from fastssl.engine.build_data import changed_inputs
from fastssl.engine.checkpoint import CheckpointContent, SavedProgress
from fastssl.engine.progress import TrainingProgress
from fastssl.errors import DataError
from fastssl.tracking.run_dir import RunFolder

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
            "mean": list(store.mean),
            "std": list(store.std),
            "stored": store.splits.get("test", store.splits["train"]).height,
            "resize": store.manifest.resize,
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
    if changed:
        config = learner.resolved.config
        given = {"store": data.store.path, "fastssl": f"version ({saved.get('fastssl')})"}
        shown = ", ".join(
            f"{name} {given.get(name, getattr(config, name, ''))}" for name in changed
        )
        if not accept_changes:
            raise DataError(
                f"{folder.path} was started with another content of: {shown}",
                "give what it was started with, or another --out; --accept-changes goes on with it",
            )
        logger.warning("changed since the run was started: %s", shown)
    return restore(learner, content)


def restore(learner: Learner, content: CheckpointContent) -> TrainingProgress:
    """Load a checkpoint into a learner; return the progress that it holds."""
    for module, weights in ((learner.model, content["model"]), (learner.ema.model, content["ema"])):
        checkpoint.check_fit(module.state_dict(), weights, "network")
        module.load_state_dict(weights)
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
    momenta = {p: entry.get("momentum_buffer") for p, entry in learner.optimizer.state.items()}
    saved_momenta = {str(k): m for k, m in enumerate(momenta.values()) if m is not None}
    shapes = {str(k): p for k, (p, m) in enumerate(momenta.items()) if m is not None}
    checkpoint.check_fit(shapes, saved_momenta, "optimizer")
    return progress
