"""A learner and batches without a dataset: random images stand for views."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fastssl.algorithms.base import DatasetInfo
from fastssl.config.resolve import ResolvedConfig, load
from fastssl.distributed.collectives import Ranks
from fastssl.engine import devices
from fastssl.engine.build import Learner, build_model, make_learner
from pipelines.loader.batch import Batch

RATIO, CLASSES = 7, 10


def synthetic_learner(
    model: str,
    batch: int,
    images: int,
    *,
    algorithm: str = "flexmatch",
    forward: str = "together",
    device: str = "cpu",
    double: bool = False,
    ranks: Ranks | None = None,
) -> Learner:
    """Build a learner with the settings of CIFAR-10."""
    overrides = [f"model={model}", f"batch={batch}", f"ratio={RATIO}", f"algorithm={algorithm}"]
    if forward != "together":
        overrides.append(f"algo.forward={forward}")
    resolved = load("cifar10", [*overrides, f"device={device}"])
    where = devices.choose_device(device, 0)
    chosen = devices.Device(
        where, devices.choose_precision("auto", where), torch.get_num_threads(), 1
    )
    return learner_of(resolved, chosen, images, double=double, ranks=ranks)


def learner_of(
    resolved: ResolvedConfig,
    device: devices.Device,
    images: int,
    *,
    double: bool = False,
    ranks: Ranks | None = None,
) -> Learner:
    """Build the learner of a configuration for a dataset of `images` unlabeled images."""
    net, where = build_model(resolved, CLASSES, device), device.device
    info = DatasetInfo(CLASSES, images, torch.full((CLASSES,), 1 / CLASSES, device=where), where)
    truth = torch.zeros(images, dtype=torch.int16)
    net = net.double() if double else net
    learner = make_learner(resolved, device, ranks or Ranks(), net, info, truth)
    learner.student.train()
    return learner


def make_batch(
    batch: int,
    size: int,
    images: int,
    seed: int,
    device: str = "cpu",
    ranks: Ranks | None = None,
    views: tuple[str, ...] = ("weak", "strong"),
    ratio: int = RATIO,
) -> Batch:
    """Return one rank's random batch: `batch` labeled images, `ratio` times as many unlabeled."""
    ranks = ranks or Ranks()
    source = torch.Generator().manual_seed(seed)
    global_positions = torch.randperm(images, generator=source)[: ratio * batch * ranks.world]

    def random_images(count: int) -> Tensor:
        # [n, 3, H, W] in channels-last memory format, as the loader delivers it
        return torch.randn(count, size, size, 3, generator=source).permute(0, 3, 1, 2).to(device)

    return Batch(
        images=random_images(batch),
        labels=torch.randint(CLASSES, (batch,), generator=source).to(device),
        views={name: random_images(ratio * batch) for name in views},
        position=ranks.take(global_positions).to(device),
        global_positions=global_positions.to(device),
        key=torch.tensor([seed, 1]).to(device),
    )


def to_double(batch: Batch) -> Batch:
    """Return a batch in double precision."""
    views = {name: view.double() for name, view in batch.views.items()}
    return replace(batch, images=batch.images.double(), views=views)
