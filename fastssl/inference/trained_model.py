"""Opening a trained run from its folder."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from fastssl.config.resolve import ResolvedConfig, load
from fastssl.engine import checkpoint, devices
from fastssl.engine.build import build_model
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.errors import ConfigError, DataError
from fastssl.tracking.run_dir import RunFolder

logger = logging.getLogger(__name__)


def open_run(path: Path, which: str = "best") -> tuple[ResolvedConfig, CheckpointContent]:
    """Return the configuration of a run and its best or last checkpoint."""
    if which not in ("best", "last"):
        raise ConfigError(f"there is no checkpoint called {which!r}", "type best or last")
    folder = RunFolder(path)
    if not folder.started():
        raise DataError(f"{path} is not the folder of a run", "give the --out of a training")
    if which == "last":
        content = checkpoint.newest(folder, logger.warning)
    elif (folder.checkpoints / checkpoint.BEST).exists():
        content = checkpoint.best(folder)
    elif checkpoint.files(folder):
        # Not replaced by the last one: numbers of the two must not be mistaken for each other.
        raise DataError(
            f"{path} has no best checkpoint: the run was never evaluated, or the file was removed",
            "type --checkpoint last",
        )
    else:
        content = None
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
