"""A run to measure, and the one loop that times its training steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from fastssl.config.resolve import load
from fastssl.engine import devices
from fastssl.engine.build import Learner, Run, assemble
from fastssl.engine.loop import train_step
from pipelines.loader.batch import Batch

EVERY_STEP = "supervised_steps=0"


@contextmanager
def open_run(config: str, overrides: Sequence[str]) -> Iterator[Run]:
    """Build a run at step 0; close its loader at the end.

    Its first steps are like all others: most of a run is to be measured.
    """
    resolved = load(config, [*overrides, EVERY_STEP])
    base = assemble(resolved, devices.choose(resolved.config))
    base.learner.student.train()
    try:
        yield base
    finally:
        base.data.loader.close()


def time_steps(
    learner: Learner, batches: Iterable[Batch], *, warmup: int = 0, limit: float = math.inf
) -> float:
    """Train on the batches; return seconds per step, including the wait for each batch.

    The first `warmup` steps are not counted. After `limit` seconds no further step starts. The
    host waits for the device at the start and at the end only, as in a training.
    """
    device = learner.device.device
    started, done = time.perf_counter(), 0
    for batch in batches:
        train_step(learner, batch, done)
        done += 1
        if done == warmup:
            _synchronize(device)
            started = time.perf_counter()
        elif done > warmup and time.perf_counter() - started > limit:
            break
    _synchronize(device)
    return (time.perf_counter() - started) / (done - warmup)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
