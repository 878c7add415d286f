"""Opening a trained run from its folder."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastssl import plugins
from fastssl.config.resolve import ResolvedConfig, load, saved_values
from fastssl.config.schema import RunConfig
from fastssl.engine import checkpoint, devices
from fastssl.engine.build import build_model
from fastssl.engine.checkpoint import CheckpointContent
from fastssl.errors import ConfigError, DataError
from fastssl.tracking.run_dir import RunFolder
from pipelines.store.store import default_place

logger = logging.getLogger(__name__)


def open_run(
    path: Path, which: str = "best", *, trust_code: bool = False
) -> tuple[ResolvedConfig, CheckpointContent]:
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
    return load_config(folder, content, trust_code=trust_code), content


def load_config(
    folder: RunFolder, content: CheckpointContent, *, trust_code: bool
) -> ResolvedConfig:
    """Return the configuration of a run as far as its model, once trained, depends on it.

    Code of the dataset is never loaded, and that of the algorithm only if it is trusted: then
    `label` knows its thresholds. Code of the model is needed.
    """
    saved = saved_values(folder.read_config())
    files = plugins.code_files(saved)
    given: dict[str, Any] = {}
    if "data" in files:
        place = default_place(content.get("store_name") or plugins.short_name(saved["data"]))
        given |= {"data": "own", "store": saved.get("store") or str(place)}
    if "model" in files:
        given["model"] = trained_code(folder, content, "model", saved)
    if "algorithm" in files and trust_code:
        with suppress(DataError):  # the file is gone
            given["algorithm"] = trained_code(folder, content, "algorithm", saved)
    plugins.require_trust(given, folder.config, trust_code=trust_code)
    if "algorithm" not in files or "algorithm" in given:
        return load(folder.config, given)
    # An algorithm of ours stands in for the one that is not loaded.
    given["algorithm"] = RunConfig.model_fields["algorithm"].default
    resolved = load(folder.config, given)
    stand_in = replace(
        resolved.algorithm,
        name=plugins.short_name(saved["algorithm"]),
        heads=content.get("heads", {}),
        thresholds=None,
    )
    config = resolved.config.model_copy(update={"algorithm": saved["algorithm"]})
    return replace(resolved, config=config, algorithm=stand_in)


def trained_code(
    folder: RunFolder, content: CheckpointContent, key: str, saved: dict[str, Any]
) -> str:
    """Return a reference to the file of the user's that a run was trained with."""
    original, sha256 = plugins.code_files(saved)[key], content.get("inputs", {}).get(key)
    if sha256 is None:  # version 0.1.0 kept neither the file nor its hash
        if original.is_file():
            return str(saved[key])
        raise DataError(f"{original}, the {key} of {folder.path}, is gone", "put it back there")
    for path in (folder.code_copy(key, sha256), original):
        if path.is_file() and plugins.sha256(path) == sha256:
            return plugins.moved(saved[key], path)
    raise DataError(
        f"{folder.code_copy(key, sha256)} is not the file that the run was trained with",
        f"put the file with the SHA-256 {sha256} there",
    )


def open_model(
    resolved: ResolvedConfig, content: CheckpointContent, device: devices.Device
) -> nn.Module:
    """Return the network with the EMA weights of a checkpoint, in eval mode."""
    (height, width), classes = content["preprocessing"]["size"], len(content["classes"])
    if not plugins.is_plugin("model", resolved.config.model):
        # A config.yaml of somebody else may name a huge network: compare shapes without memory.
        # Some networks of torchvision compute with tensors when they are built, which meta cannot.
        meta = replace(device, device=torch.device("meta"))
        with suppress(NotImplementedError, ConfigError), meta.device:
            empty = build_model(resolved, classes, meta, (height, width))
            checkpoint.check_fit(empty.state_dict(), content["ema"], "network")
    model = build_model(resolved, classes, device, (height, width))
    checkpoint.check_fit(model.state_dict(), content["ema"], "network")
    model.load_state_dict(content["ema"])
    return model.eval()
