"""torch.compile of the step: when it is used, and what was decided."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastssl.algorithms.base import Step
from fastssl.assemble import Run


def choose(run: Run, tell: Callable[[str], None]) -> Step:
    """Return the step function to call: compiled or as it is written."""
    config = run.loaded.config
    mode = config.compile
    if mode == "auto":
        mode = "step" if run.device.device.type == "cuda" else "off"
    if mode == "off":
        return run.algorithm.step
    tell("compile: the first step takes minutes where nothing is cached yet")
    # Under ranks DDP's wrapper splits the graph; alone, one graph is demanded.
    return torch.compile(
        run.algorithm.step,
        fullgraph=run.ranks.world == 1,
        mode="max-autotune-no-cudagraphs" if mode == "max" else "default",
    )
