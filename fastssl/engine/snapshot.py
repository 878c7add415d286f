"""From a run to the content of a checkpoint, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from fastssl.engine.build import Learner, TrainingData
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.engine.progress import TrainingProgress


def snapshot(
    learner: Learner, data: TrainingData, progress: TrainingProgress, quality: Tensor
) -> CheckpointContent:
    """Copy all that a restart needs to the CPU; waits for the device.

    `quality` are the learner's pseudo-label counts, averaged over ranks. Random
    numbers are keyed by seed and step and need no state.
    """
    store = data.store
    content: CheckpointContent = {
        "model": learner.model.state_dict(),
        "ema": learner.ema.model.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "scaler": learner.scaler.state,
        "state": learner.state,
        "quality": quality,
        "trip": asdict(progress),
        "config": learner.resolved.as_dict(),
        "store": store.fingerprint,
        "store_name": store.name,
        "inputs": data.inputs,
        "heads": dict(learner.algorithm.heads),
        "classes": list(store.class_names),
        "preprocessing": {
            "size": list(data.size),
            "mean": list(store.mean),
            "std": list(store.std),
            "stored": store.splits["test"].height,
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


def restore(learner: Learner, content: CheckpointContent) -> TrainingProgress:
    """Load a checkpoint into a learner; return the progress that it holds."""
    learner.model.load_state_dict(content["model"])
    learner.ema.model.load_state_dict(content["ema"])
    learner.optimizer.load_state_dict(content["optimizer"])
    for own, saved in (
        (learner.state, content["state"]),
        (learner.scaler.state, content["scaler"]),
    ):
        for key, value in saved.items():
            own[key].copy_(value)
    learner.quality.sums.copy_(content["quality"])
    return TrainingProgress(**content["trip"])
