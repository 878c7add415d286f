"""The rates that a plan rests on, each measured alone, and the real steps that it is held against.

Everything is measured at one place, in one process, with the threads that a run would have.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fastssl import models
from fastssl.config.resolve import load
from fastssl.config.schema import RunConfig
from fastssl.engine import devices
from fastssl.engine.build import Run, assemble
from fastssl.engine.build_data import find_store
from fastssl.engine.loop import train_step
from fastssl.profiling.measure import Measured
from fastssl.profiling.plan import Load
from pipelines.datasets import DATASETS
from pipelines.loader.batch import Batch

if TYPE_CHECKING:
    from fastssl.profiling.plan import Options

WARMUP = 2  # steps: the first batches were made before any step competed for the cores
ENOUGH = 6.0  # seconds of steps that one measurement takes at most, three steps at least


@contextmanager
def opened(config: str, words: list[str]) -> Iterator[Run]:
    """Build a run, and close its loader in the end."""
    resolved = load(config, words)
    base = assemble(resolved, devices.choose(resolved.config))
    base.learner.student.train()
    try:
        yield base
    finally:
        base.data.loader.close()


def load_of(base: Run) -> Load:
    """Return what a step of this run asks for."""
    order = base.data.loader.order
    return Load(
        images=order.batch + order.unlabeled_batch,
        views=order.batch + order.unlabeled_batch * len(base.learner.algorithm.views),
        bytes=gradient_bytes(base.learner.model),
        shared=base.learner.device.device.type == "cpu" and crowded(base.learner.resolved.config),
    )


def load_on_paper(config: str, words: list[str]) -> Load:
    """Return what a step of a configuration asks for; a standard data set need not be here."""
    resolved = load(config, words)
    chosen, algorithm = resolved.config, resolved.algorithm
    known = chosen.data in DATASETS and not chosen.store
    classes = DATASETS[chosen.data].classes if known else find_store(resolved).classes
    model = models.build(chosen.model, classes, chosen.variant, algorithm.heads)
    unlabeled = chosen.batch * (chosen.ratio or algorithm.ratio) if algorithm.unlabeled else 0
    # A GPU that is asked for by name may be another machine's.
    device = "cuda" if chosen.device == "auto" and torch.cuda.is_available() else chosen.device
    return Load(
        images=chosen.batch + unlabeled,
        views=chosen.batch + unlabeled * len(algorithm.views),
        bytes=gradient_bytes(model),
        shared=not device.startswith("cuda") and crowded(chosen),
    )


def crowded(config: RunConfig) -> bool:
    """Tell whether model and loader have more threads than there are cores."""
    return sum(devices.choose_threads(config)) > len(os.sched_getaffinity(0))


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes that one rank sends of its gradients."""
    return sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)


def measure(base: Run, asked: Options) -> dict[str, Measured]:
    """Measure the rates that were not given, and real steps to check by, round after round.

    Every round begins with another of them. The first round warms up; it is counted where it
    alone took all the time.
    """
    parts = {"decode": _decode, "views": _views, "step": _step}
    wanted = {name: part for name, part in parts.items() if getattr(asked, name) is None}
    if asked.check and asked.world == 1:
        wanted["measured"] = _real
    names, rounds = list(wanted), list[dict[str, float]]()
    until = time.monotonic() + asked.seconds
    for turn in range(1 + asked.repetitions):
        first = turn % len(names)
        found = {name: wanted[name](base, asked.steps) for name in names[first:] + names[:first]}
        late = time.monotonic() > until
        if turn or late:
            rounds.append(found)
        if late:
            break
    return {name: Measured(tuple(one[name] for one in rounds), 0.0) for name in names}


def _decode(base: Run, steps: int) -> float:
    """Read the images of some steps and do nothing else with them."""
    plans = [base.data.loader._plan(step).indices for step in range(WARMUP + steps)]
    stream, began, done = base.data.loader.reader.stream(iter(plans)), 0.0, 0
    for number, images in enumerate(stream):
        if number == WARMUP - 1:
            began = time.perf_counter()
        elif number >= WARMUP:
            done += len(images)
    return done / (time.perf_counter() - began)


def _views(base: Run, steps: int) -> float:
    """Draw and make the views of one batch again and again."""
    loader = base.data.loader
    plan = loader._plan(0)
    (pixels,) = (np.array(one) for one in loader.reader.stream(iter([plan.indices])))
    out = loader._buffers()
    times = []
    for _ in range(WARMUP + steps):
        began = time.perf_counter()
        loader._make(plan, pixels, out)
        times.append(time.perf_counter() - began)
    return load_of(base).views / float(np.median(times[WARMUP:]))


def _step(base: Run, steps: int) -> float:
    """Take steps on one batch that costs nothing."""
    batch = copy.deepcopy(base.data.loader.batch(0))
    return _learn(base, repeat(batch, WARMUP + steps))


def _real(base: Run, steps: int) -> float:
    """Train for some steps as a run does."""
    batches = base.data.loader.iterate(0, WARMUP + steps)
    with closing(batches):  # type: ignore[type-var]  # a generator, which may be left early
        return _learn(base, batches)


def _learn(base: Run, batches: Iterable[Batch]) -> float:
    """Take a step on every batch; return images a second."""
    progress = torch.zeros((), device=base.learner.device.device)
    times = []
    began = time.perf_counter()
    for step, batch in enumerate(batches):
        float(train_step(base.learner, batch, step, progress).loss.detach())
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        if step >= WARMUP and sum(times) > ENOUGH:
            break
    return load_of(base).images / float(np.median(times[WARMUP:]))
