"""What the data costs a training: time spent waiting, and what the loader takes from the model.

Every reader feeds the same model, and a constant batch that costs nothing is the measure: steps
with each of them are taken in turn, in one run.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

import torch

from fastssl.config.resolve import load
from fastssl.engine import devices
from fastssl.engine.build import Run, assemble
from fastssl.engine.build_data import make_data, view_recipes
from fastssl.engine.loop import train_step
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.snapshot import snapshot
from fastssl.profiling.measure import Measured, environment, interleave
from pipelines.loader.batch import Batch
from pipelines.loader.loader import Loader
from pipelines.readers import READERS

CONSTANT, CHECKPOINT = "constant batch", "checkpoint"
FEW_BUSY = 0.75  # of the threads, below which the model leaves cores idle
MOST_WAITING = 0.02  # of the time, before a sentence says what to change


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    config: str = "cifar10"
    """A configuration, by name or path."""
    overrides: Sequence[str] = ()
    """`key=value` words."""
    readers: tuple[str, ...] = ("resident", "ffcv", "dali")
    """Readers, by name; one that is not installed is left out."""
    steps: int = 2
    """Steps of one repetition."""
    repetitions: int = 5
    """Counted rounds; one more warms up."""


@dataclass
class Feeding:
    """Steps fed by one source of batches.

    A repetition begins with one batch taken and none made ahead, and one more is made for every
    step: what a loader prepared in somebody else's time would hide that it is slow.
    """

    run: Run
    feed: Callable[[int, int], Iterator[Batch]]  # the batches from one step up to another
    steps: int
    loader: Loader | None = None  # whose waiting counts
    shares: list[float] = field(default_factory=list)
    done: int = 0

    def __call__(self) -> float:
        """Take some steps; return seconds a step."""
        progress = torch.zeros((), device=self.run.learner.device.device)
        batches = self.feed(self.done, self.done + self.steps + 1)
        batch = next(batches)
        started, waited = time.perf_counter(), self.waited
        for _ in range(self.steps):
            train_step(self.run.learner, batch, self.done, progress)
            batch = next(batches)
            self.done += 1
        if self.run.learner.device.device.type == "cuda":
            torch.cuda.synchronize()
        passed = time.perf_counter() - started
        self.shares.append((self.waited - waited) / passed)
        next(batches, None)  # that was the last: the loader's thread ends
        return passed / self.steps

    @property
    def waited(self) -> float:
        """Seconds spent waiting so far."""
        return self.loader.waited if self.loader else 0.0

    @property
    def share(self) -> float:
        """The share of the time spent waiting, the warm-up left out."""
        return statistics.median(self.shares[1:] or self.shares)


def run(config: str = "cifar10", overrides: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = Options(config, tuple(overrides), **options)
    resolved = load(asked.config, list(asked.overrides))
    device = devices.choose(resolved.config)
    base = assemble(resolved, device)
    base.learner.student.train()
    names = [name for name in asked.readers if READERS[name].installed]
    loaders = {name: open_loader(base, name) for name in names}
    try:
        constant = copy.deepcopy(base.data.loader.batch(0))
        cases = {CONSTANT: Feeding(base, lambda a, b: repeat(constant, b - a), asked.steps)}
        for name, loader in loaders.items():
            cases[name] = Feeding(base, loader.iterate, asked.steps, loader)
        work: dict[str, Callable[[], float]] = {**cases, CHECKPOINT: lambda: snap(base)}
        measured = interleave(work, asked.repetitions)
    finally:
        for loader in (base.data.loader, *loaders.values()):
            loader.close()
    return record(asked, base, measured, {name: cases[name].share for name in names})


def snap(base: Run) -> float:
    """Take a checkpoint's part of the training thread; return its seconds a step."""
    started = time.perf_counter()
    snapshot(*base, TrainingProgress(), base.learner.quality.sums)
    return (time.perf_counter() - started) / base.learner.resolved.config.checkpoint_every


def open_loader(base: Run, reader: str) -> Loader:
    """Open a loader like a run's own, with another reader."""
    split, order = make_data(base.learner.resolved, base.data.store, 1)
    return Loader(
        base.data.store,
        split,
        order,
        views=base.learner.algorithm.views,
        recipes=view_recipes(base.learner.resolved, base.data.store),
        seed=base.learner.resolved.config.seed,
        device=str(base.learner.device.device),
        reader=reader,
        threads=base.learner.device.loader_threads,
    )


def record(
    asked: Options, base: Run, measured: Mapping[str, Measured], shares: Mapping[str, float]
) -> dict[str, Any]:
    """Put the record together; a ratio is the time with a reader over that without one.

    That of the checkpoint is what it takes from the training thread, spread over the steps
    between two of them.
    """
    config = base.learner.resolved.config
    free = measured[CONSTANT].median
    ratio = {name: measured[name].median / free for name in (*shares, CHECKPOINT)}
    return {
        "what": "train",
        "environment": environment(),
        "settings": {
            **asdict(asked),
            "algorithm": base.learner.algorithm.name,
            "model": config.model,
            "batch": config.batch,
            "threads": base.learner.device.threads,
            "loader_threads": base.learner.device.loader_threads,
        },
        "results": [
            {
                "name": name,
                "rate": round(case.median, 9 if name == CHECKPOINT else 4),
                "unit": "seconds/step",
                "spread": round(case.spread, 9 if name == CHECKPOINT else 4),
                "cpu_seconds": round(case.busy * case.median, 4),
                "data_wait": round(shares.get(name, 0.0), 5),
            }
            for name, case in measured.items()
        ],
        "ratio": {
            name: round(value, 9 if name == CHECKPOINT else 4) for name, value in ratio.items()
        },
        "data_wait": {name: round(share, 5) for name, share in shares.items()},
        "says": sentence(shares) + idle(measured[CONSTANT].busy, base.learner.device.threads),
    }


def sentence(shares: Mapping[str, float]) -> str:
    """Say where the bottleneck is, and which key to change."""
    slow = [name for name, share in shares.items() if share > MOST_WAITING]
    if not slow:
        return "The model is the bottleneck: with no reader does it wait for data."
    fast = [name for name in shares if name not in slow]
    other = f"take reader={fast[0]}, or more loader_threads" if fast else "take more loader_threads"
    return f"The model waits for data with {', '.join(slow)}: {other}."


def idle(busy: float, threads: int) -> str:
    """Say it if the step itself leaves cores idle: then rates here are not the machine's limit."""
    if busy >= FEW_BUSY * threads:
        return ""
    return (
        f" The constant batch keeps {busy:.1f} of {threads} threads busy: other work shares the "
        "cores, or the batch is too small; measure on an idle machine, or type batch=64."
    )
