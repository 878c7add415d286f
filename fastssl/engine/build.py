"""From a configuration to everything that a step needs, built once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastssl import models
from fastssl.algorithms.base import Algorithm, DatasetInfo, Nets, State, Step
from fastssl.config.resolve import ResolvedConfig
from fastssl.distributed.collectives import Ranks, SingleRank
from fastssl.engine import checkpoint, optim
from fastssl.engine.build_data import find_store, make_data, view_recipes
from fastssl.engine.devices import Device
from fastssl.engine.ema import Ema
from fastssl.engine.nonfinite import NonFiniteCheck
from fastssl.engine.scaler import Scaler
from fastssl.errors import ConfigError
from fastssl.tracking.pseudo_label_stats import Quality
from fastssl.tracking.run_dir import RunFolder
from pipelines.loader.loader import Loader, evaluation
from pipelines.sampling.split import Split
from pipelines.store.store import Store


@dataclass(slots=True)
class Run:
    """The parts of a run; all that changes while training is reachable from here."""

    resolved: ResolvedConfig
    device: Device
    ranks: Ranks
    store: Store
    split: Split
    loader: Loader
    model: nn.Module  # the student, bare
    student: nn.Module  # what a step calls: the bare student, or its DDP wrapper
    ema: Ema
    optimizer: torch.optim.SGD
    scaler: Scaler
    state: State
    nonfinite: NonFiniteCheck
    quality: Quality
    size: tuple[int, int]
    step: Step  # the algorithm's step function, compiled where that was chosen

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that is run."""
        return self.resolved.algorithm

    @property
    def nets(self) -> Nets:
        """The two networks, as a step gets them."""
        return Nets(self.student, self.ema.model)

    def evaluation(self, part: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Walk this rank's share of `test` or `validation`, as batches of images and labels."""
        config = self.resolved.config
        if part == "validation":
            split, indices = "train", self.split.validation
        else:
            split, indices = "test", np.arange(self.store.splits["test"].count)
        share = np.array_split(indices, self.ranks.world)[self.ranks.rank]
        if not len(share):  # fewer images than ranks
            return iter(())
        return evaluation(
            self.store,
            split,
            share,
            size=self.size,
            reader=config.reader,
            device=str(self.device.device),
            batch=config.eval_batch,
            threads=self.device.threads,
        )


def build_model(resolved: ResolvedConfig, classes: int, device: Device) -> nn.Module:
    """Build the network with weights that the seed alone decides."""
    config = resolved.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = models.build(
            config.model,
            classes=classes,
            variant=config.variant,
            heads=resolved.algorithm.heads,
            bn_momentum=config.bn_momentum,
        )
    if config.init:
        load_weights(model, Path(config.init))
    return model.to(device.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_weights(model: nn.Module, path: Path) -> None:
    """Take the averaged weights of a run or checkpoint; heads of another shape stay as they are."""
    found = checkpoint.best(RunFolder(path)) if path.is_dir() else checkpoint.read(path)
    own = model.state_dict()
    fits = {k: v for k, v in found["ema"].items() if k in own and own[k].shape == v.shape}
    if not fits:
        raise ConfigError(f"no weight of {path} fits this model", "give init=RUN of the same model")
    model.load_state_dict({**own, **fits})


def assemble(resolved: ResolvedConfig, device: Device, ranks: Ranks | None = None) -> Run:
    """Build a run at step 0."""
    from fastssl.distributed.process_group import wrap

    ranks = ranks or SingleRank()
    store = find_store(resolved)
    split, order = make_data(resolved, store, ranks.world)
    chosen = view_recipes(resolved, store)
    config = resolved.config
    loader = Loader(
        store,
        split,
        order,
        views=resolved.algorithm.views,
        recipes=chosen,
        seed=config.seed,
        device=str(device.device),
        reader=config.reader,
        threads=device.loader_threads,
        rank=ranks.rank,
        world=ranks.world,
    )
    model = build_model(resolved, store.classes, device)
    model, student = wrap(model, device.device, ranks)
    state, quality, images = remember(resolved, store, split, device)
    return Run(
        resolved=resolved,
        device=device,
        ranks=ranks,
        store=store,
        split=split,
        loader=loader,
        model=model,
        student=student,
        ema=Ema(model, config.ema),
        optimizer=optim.build(model, config),
        scaler=Scaler(model, device.device, device.precision == "fp16"),
        state=state,
        nonfinite=NonFiniteCheck(model, state, images, device.device),
        quality=quality,
        size=chosen["weak"].size,
        step=resolved.algorithm.step,
    )


def remember(
    resolved: ResolvedConfig, store: Store, split: Split, device: Device
) -> tuple[State, Quality, int]:
    """Build the algorithm's state and the book of pseudo-label quality."""
    labels = store.labels("train")
    shares = np.bincount(labels[split.labeled], minlength=store.classes).astype(np.float32)
    images = len(split.unlabeled) if resolved.algorithm.unlabeled else 0
    info = DatasetInfo(
        num_classes=store.classes,
        num_unlabeled=images,
        labeled_shares=torch.from_numpy(shares / shares.sum()).to(device.device),
        device=device.device,
    )
    state: State = resolved.algorithm.init_state(resolved.settings, info)
    known: Any = labels[split.unlabeled] if images else labels[:0]
    truth = torch.from_numpy(known.astype(np.int16 if store.classes < 2**15 else np.int32))
    return state, Quality(truth.to(device.device), store.classes), images
