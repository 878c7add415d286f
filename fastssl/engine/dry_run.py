"""`fastssl train --dry-run`: a few steps, and how long the run would take."""

from __future__ import annotations

import json
import logging
import statistics
import time
from typing import NamedTuple

import psutil

from fastssl.config.resolve import ResolvedConfig
from fastssl.distributed import process_group
from fastssl.engine import compilation, devices, threads
from fastssl.engine.build import Learner, Run, TrainingData, assemble
from fastssl.engine.failures import out_of_memory
from fastssl.engine.loop import train_step
from fastssl.engine.summary import announce
from pipelines.cpus import available_cpus

logger = logging.getLogger(__name__)
FEWEST, MOST = 10, 200  # steps of a dry run
# Ten steps of a small network take less than a moment in which the machine does something else.
SETTLED, PATIENCE = 2.0, 5.0  # seconds after which it ends if it has the fewest steps, or anyway


class Measured(NamedTuple):
    """What a few steps have shown about a run."""

    learner: Learner
    data: TrainingData  # closed
    seconds: float  # of a step
    startup: float  # seconds before the first step


def measure(resolved: ResolvedConfig, group: process_group.Group) -> Measured:
    """Train a few steps and write nothing; the steps are not compiled, which may take minutes."""
    began = time.monotonic()
    wanted = resolved.config.threads
    resolved, device = devices.choose_for_run(resolved, group)
    ranks, config = group.ranks, resolved.config
    with out_of_memory(resolved):
        learner, data = assemble(resolved, device, ranks)
        announce(learner, data, 0, "nothing is written")
        learner, data = threads.choose(Run(learner, data), wanted)
        startup = time.monotonic() - began
        times: list[float] = []
        ended = time.monotonic()
        first = config.supervised_steps  # the steps after them are most of a run
        batches = data.loader.iterate(first, min(first + MOST, config.steps))
        for step, batch in enumerate(batches, first):
            float(train_step(learner, batch, step).loss.detach())  # waits for the device
            began, ended = ended, time.monotonic()
            times.append(ended - began)  # with the time to wait for the batch
            limit = PATIENCE if len(times) < FEWEST else SETTLED
            # All ranks must stop after the same step: the next one has collectives.
            if ranks.max(int(sum(times) > limit)):
                break
        data.close()
    seconds = statistics.median(times[2:] or times[-1:])  # the first two warm up
    load, cores = psutil.getloadavg()[0], available_cpus()
    if load > cores:
        logger.info(f"the machine is busy (load {load:.0f}, {cores} cores): alone it takes less")
    return Measured(learner, data, seconds, startup)


def rehearse(resolved: ResolvedConfig, group: process_group.Group, *, as_json: bool = False) -> int:
    """Measure a few steps and report how long the whole run would take."""
    learner, _, seconds, _ = measure(resolved, group)
    steps = resolved.config.steps
    expected = seconds * steps
    hours = expected / 3600
    logger.info(f"dry run: {seconds * 1000:.0f} ms a step, about {hours:.2f} h for the whole run")
    if compilation.is_possible(learner, expected):
        logger.info("measured without compiling, which may change it; compile=off never compiles")
    if as_json and group.ranks.rank == 0:
        print(json.dumps({"seconds_per_step": seconds, "steps": steps}))
    return 0
