"""Opening and evaluating a trained run from its folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fastssl.config.resolve import ResolvedConfig, load
from fastssl.distributed.collectives import SingleRank
from fastssl.engine import checkpoint, devices, evaluation
from fastssl.engine.build import build_model
from fastssl.engine.build_data import find_store, view_recipes
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.errors import ConfigError, DataError
from fastssl.tracking.run_dir import RunFolder
from pipelines.store.store import open_store

logger = logging.getLogger(__name__)


def open_run(path: Path, which: str = "best") -> tuple[ResolvedConfig, CheckpointContent]:
    """Return the configuration of a run and its best or last checkpoint."""
    if which not in ("best", "last"):
        raise ConfigError(f"there is no checkpoint called {which!r}", "type best or last")
    folder = RunFolder(path)
    if not folder.started():
        raise DataError(f"{path} is not the folder of a run", "give the --out of a training")
    if which == "best" and (folder.checkpoints / checkpoint.BEST).exists():
        content: CheckpointContent | None = checkpoint.best(folder)
    else:
        content = checkpoint.newest(folder, logger.warning)
    if content is None:
        raise DataError(f"{path} holds no checkpoint yet", "train longer, then try again")
    return load(folder.config), content


def open_model(
    resolved: ResolvedConfig, content: CheckpointContent, device: devices.Device
) -> nn.Module:
    """Return the network with the EMA weights of a checkpoint, in eval mode."""
    model = build_model(resolved, len(content["classes"]), device)
    model.load_state_dict(content["ema"])
    return model.eval()


def evaluate(path: Path, which: str = "best", store: str | None = None) -> dict[str, Any]:
    """Return the metrics of a run's model on its test set."""
    resolved, content = open_run(path, which)
    device = devices.choose(resolved.config)
    found = open_store(store) if store else find_store(resolved)
    model, ranks = open_model(resolved, content, device), SingleRank()
    with evaluation.open_batches(
        found,
        "test",
        np.arange(found.splits["test"].count),
        size=view_recipes(resolved, found)["weak"].size,
        config=resolved.config,
        device=device,
        ranks=ranks,
    ) as batches:
        logits, labels = evaluation.predict_split(model, batches, device, ranks)
    metrics = evaluation.compute_metrics(logits, labels)
    return {"run": str(path), "checkpoint": which, "step": content["trip"]["step"], **metrics}
