"""Check whether a training step fits into the memory of a machine without a GPU.

It runs before the first step, because running out of host memory raises no exception: the kernel
kills the process.
"""

from __future__ import annotations

import copy

import psutil
import torch
from torch import Tensor

from fastssl.engine.build import Learner
from fastssl.errors import ResourceError
from pipelines.memory import total_memory


def check(learner: Learner, size: tuple[int, int]) -> None:
    """Raise ResourceError if even half of the memory estimated for a step on a CPU is missing.

    Half, because some algorithms compute up to half of the images without a gradient. A compiled
    step keeps less for backward than is counted here, so it is not checked.
    """
    config = learner.resolved.config
    if learner.device.device.type != "cpu" or config.compile not in ("off", "auto"):
        return
    need, available = per_image(learner, size) * images(learner), total()
    if need / 2 <= available:
        return
    ratio = config.ratio or learner.algorithm.ratio
    now, most = config.accumulate, config.batch // learner.ranks.world
    fits = (n for n in range(now + 1, most + 1) if most % n == 0 and need * now / n <= available)
    parts = next(fits, None)
    fixes = ["lower batch or ratio", "convert the images with a smaller --size"]
    if parts:
        fixes.insert(1, f"type accumulate={parts} (BatchNorm then sees the parts)")
    raise ResourceError(
        f"a step with batch={config.batch} and ratio={ratio} needs about {need / 1e9:,.1f} GB of "
        f"memory, and this machine has {available / 1e9:,.1f} GB",
        ", or ".join(fixes),
    )


def images(learner: Learner) -> float:
    """Return the number of images in one forward pass of a step on this rank."""
    config, algorithm = learner.resolved.config, learner.algorithm
    views = len(algorithm.views) * (config.ratio or algorithm.ratio)
    return config.batch * (1 + views) / learner.ranks.world / config.accumulate


def per_image(learner: Learner, size: tuple[int, int]) -> int:
    """Return the bytes that a forward pass keeps for backward, for each image.

    The pass runs on a copy in eval mode, so it changes no statistics, modes or random numbers of
    the run. The difference between two images and one excludes what is kept once, such as weights
    in another precision.
    """
    model = copy.deepcopy(learner.model).eval()

    def kept(count: int) -> int:
        storages = {}  # held until all are counted, so that no address comes twice

        def pack(tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage

        views = torch.zeros(count, 3, *size).contiguous(memory_format=torch.channels_last)
        # Nothing goes backward, so nothing is ever unpacked.
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda _: views)
        with torch.random.fork_rng(devices=[]), learner.device.autocast(), hooks:
            model(views)
        return sum(storage.nbytes() for storage in storages.values())

    return kept(2) - kept(1)


def total() -> int:
    """Return the bytes of memory and swap that this process can get at most."""
    return int(total_memory() + psutil.swap_memory().total)
