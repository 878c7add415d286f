"""The losses of a few fixed steps, and the processor and torch that they hold exactly on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from fastssl.config.resolve import load
from fastssl.engine import devices
from fastssl.engine.build import assemble
from fastssl.engine.loop import train_step
from fastssl.tracking import environment
from tests.runs import TINY

FOLDER = Path(__file__).parent
STEPS = 4


def losses(name: str) -> list[float]:
    """Train tiny digits for four steps with one thread; return the losses."""
    # Both averages by their values: `auto` may choose others in a later version.
    averages = ["ema=0.99", "bn_momentum=0.05"]
    resolved = load("digits", [*TINY, *averages, f"algorithm={name}"])
    threads = torch.get_num_threads()
    learner, data = assemble(resolved, devices.choose(resolved.config))
    try:
        return [
            float(train_step(learner, data.loader.batch(step), step).loss.detach())
            for step in range(STEPS)
        ]
    finally:
        data.loader.close()
        torch.set_num_threads(threads)


def here() -> str:
    """Name processor and torch; the flags distinguish machines of one name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    digest = hashlib.sha256(flags.encode()).hexdigest()[:8]
    return f"{environment.processor()} (flags {digest}), torch {torch.__version__}"
