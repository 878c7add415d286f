"""A run without data: everything that a step needs, on random images that are already views."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fastssl import models
from fastssl.algorithms.base import DatasetInfo
from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks, SingleRank
from fastssl.distributed.process_group import wrap
from fastssl.engine import devices, optim
from fastssl.engine.build import Run
from fastssl.engine.ema import Ema
from fastssl.engine.nonfinite import NonFiniteCheck
from fastssl.engine.scaler import Scaler
from fastssl.tracking.pseudo_label_stats import Quality
from pipelines.loader.batch import Batch
from pipelines.sampling.split import Split

RATIO, CLASSES = 7, 10


def make_run(
    model: str,
    batch: int,
    size: int,
    images: int,
    *,
    algorithm: str = "flexmatch",
    forward: str = "together",
    device: str = "cpu",
    double: bool = False,
    ranks: Ranks | None = None,
) -> Run:
    """Build a run with the settings of CIFAR-10 and no store."""
    words = [f"model={model}", f"batch={batch}", f"ratio={RATIO}", f"algorithm={algorithm}"]
    if forward != "together":
        words.append(f"algo.forward={forward}")
    resolved = load("cifar10", [*words, f"device={device}"])
    ranks = ranks or SingleRank()
    where = devices.choose_device(device, 0)
    chosen = devices.Device(
        where, devices.choose_precision("auto", where), torch.get_num_threads(), 1
    )
    torch.manual_seed(0)
    net = models.build(model, CLASSES, heads=resolved.algorithm.heads).to(where)
    net, student = wrap(net.double() if double else net, where, ranks)
    info = DatasetInfo(CLASSES, images, torch.full((CLASSES,), 1 / CLASSES, device=where), where)
    state = resolved.algorithm.init_state(resolved.settings, info)
    places = np.arange(images)
    student.train()
    return Run(
        resolved=resolved,
        device=chosen,
        ranks=ranks,
        store=cast(Any, None),
        split=Split(places[:0], places, places[:0]),
        loader=cast(Any, None),
        model=net,
        student=student,
        ema=Ema(net, resolved.config.ema),
        optimizer=optim.build(net, resolved.config),
        scaler=Scaler(net, where, chosen.precision == "fp16"),
        state=state,
        nonfinite=NonFiniteCheck(net, state, images, where),
        quality=Quality(torch.zeros(images, dtype=torch.int16, device=where), CLASSES),
        size=(size, size),
        step=resolved.algorithm.step,
    )


def make_batch(
    batch: int,
    size: int,
    images: int,
    seed: int,
    device: str = "cpu",
    ranks: Ranks | None = None,
    views: tuple[str, ...] = ("weak", "strong"),
) -> Batch:
    """Draw one rank's batch: `batch` labelled images and seven times as many unlabelled ones."""
    ranks = ranks or SingleRank()
    source = torch.Generator().manual_seed(seed)
    global_positions = torch.randperm(images, generator=source)[: RATIO * batch * ranks.world]

    def pictures(count: int) -> Tensor:
        drawn = torch.randn(count, size, size, 3, generator=source)
        return drawn.permute(0, 3, 1, 2).to(device)

    return Batch(
        images=pictures(batch),
        labels=torch.randint(CLASSES, (batch,), generator=source).to(device),
        views={name: pictures(RATIO * batch) for name in views},
        position=ranks.take(global_positions).to(device),
        global_positions=global_positions.to(device),
        key=torch.tensor([seed, 1]).to(device),
    )


def widen(batch: Batch) -> Batch:
    """Return a batch in double precision."""
    views = {name: view.double() for name, view in batch.views.items()}
    return replace(batch, images=batch.images.double(), views=views)
