"""Whether a step can fit into the memory of a machine without a GPU: asked before the first one.

A CPU that runs out of memory raises nothing that could be caught: the kernel ends the process.
"""

from __future__ import annotations

import copy

import psutil
import torch
from torch import Tensor

from fastssl.engine.build import Run
from fastssl.errors import ResourceError
from pipelines.memory import total_memory


def check(run: Run) -> None:
    """Refuse a step on a CPU of which even half could never fit.

    Half, because some algorithms send up to half of the images through without a gradient. A
    compiled step keeps less for backward than is counted here, and is not judged.
    """
    config = run.resolved.config
    if run.device.device.type != "cpu" or config.compile not in ("off", "auto"):
        return
    need, there = per_image(run) * images(run), total()
    if need / 2 <= there:
        return
    ratio = config.ratio or run.algorithm.ratio
    now, most = config.micro_batch or 1, config.batch // run.ranks.world
    fits = (n for n in range(now + 1, most + 1) if most % n == 0 and need * now / n <= there)
    parts = next(fits, None)
    ways = ["lower batch or ratio", "convert the images with a smaller --size"]
    if parts:
        ways.insert(1, f"type micro_batch={parts} (BatchNorm then sees the parts)")
    raise ResourceError(
        f"a step with batch={config.batch} and ratio={ratio} needs about {need / 1e9:,.1f} GB of "
        f"memory, and this machine has {there / 1e9:,.1f} GB",
        ", or ".join(ways),
    )


def images(run: Run) -> float:
    """Return how many images one part of a step sends through the network on this rank."""
    config, algorithm = run.resolved.config, run.algorithm
    views = len(algorithm.views) * (config.ratio or algorithm.ratio)
    return config.batch * (1 + views) / run.ranks.world / (config.micro_batch or 1)


def per_image(run: Run) -> int:
    """Return the bytes that a forward pass keeps for backward, for each image.

    It runs on a copy that does not train, so statistics, modes and random numbers of the run stay
    as they are. Two images less one leaves out what is kept once, as weights in another precision.
    """
    model = copy.deepcopy(run.model).eval()

    def kept(count: int) -> int:
        storages = {}  # held until all are counted, so that no address comes twice

        def pack(tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage

        views = torch.zeros(count, 3, *run.size).contiguous(memory_format=torch.channels_last)
        # Nothing goes backward, so nothing is ever unpacked.
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda _: views)
        with torch.random.fork_rng(devices=[]), run.device.autocast(), hooks:
            model(views)
        return sum(storage.nbytes() for storage in storages.values())

    return kept(2) - kept(1)


def total() -> int:
    """Return the bytes of memory and swap that this process could ever get."""
    return int(total_memory() + psutil.swap_memory().total)
