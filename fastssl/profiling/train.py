"""What the data pipeline costs a training: time spent waiting, and slower steps.

Every reader feeds the same model. A constant batch that costs nothing is the baseline; steps with
each source of batches are interleaved in one run.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

from fastssl.config.resolve import load
from fastssl.engine.build import Learner, Run, open_data
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.snapshot import snapshot
from fastssl.profiling.measure import Case, Measured, interleave, make_record
from fastssl.profiling.step_timing import EVERY_STEP, open_run, time_steps
from fastssl.profiling.subjects import TrainOptions
from pipelines.loader.batch import Batch
from pipelines.loader.loader import Loader
from pipelines.readers import READERS

CONSTANT, CHECKPOINT = "constant batch", "checkpoint"
FEW_BUSY = 0.75  # share of the threads below which the model leaves cores idle
MAX_WAIT = 0.02  # share of the time above which the summary names a key to change


@dataclass
class FedSteps:
    """A case: training steps fed by one source of batches.

    Each repetition opens the source again, so that batches made ahead while another case was
    measured do not hide a slow loader. The first step of a repetition is not counted: from then
    on, one batch is made per step, as in a long training.
    """

    learner: Learner
    source: Callable[[int, int], Iterator[Batch]]  # the batches of the steps [first, last)
    steps: int
    loader: Loader | None = None  # whose waiting time counts; None for the constant batch
    shares: list[float] = field(default_factory=list)
    done: int = 0
    waited: float = 0.0  # the loader's waiting time when counting started

    def __call__(self) -> float:
        """Run some steps; return seconds per step."""
        first, self.done = self.done, self.done + self.steps + 1
        batches = self.source(first, self.done)
        seconds = time_steps(self.learner, self._after_first(batches), warmup=1)
        waited = self.loader.waited - self.waited if self.loader else 0.0
        self.shares.append(waited / (seconds * self.steps))
        return seconds

    def _after_first(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield all batches; note the waiting time before the second one."""
        yield next(batches)
        self.waited = self.loader.waited if self.loader else 0.0
        yield from batches

    @property
    def share(self) -> float:
        """The share of the time spent waiting for data, without the warm-up round."""
        return statistics.median(self.shares[1:] or self.shares)


def run(options: TrainOptions) -> dict[str, Any]:
    """Measure training with each reader; return the record."""
    names = [name for name in options.readers if READERS[name].installed]
    with open_run(options.config, options.overrides) as base, ExitStack() as stack:
        learner = base.learner
        # A copy, because the loader reuses its buffers.
        constant = copy.deepcopy(base.data.loader.batch(0))
        fed = {CONSTANT: FedSteps(learner, lambda a, b: repeat(constant, b - a), options.steps)}
        for name in names:
            resolved = load(options.config, [*options.overrides, f"reader={name}", EVERY_STEP])
            data = open_data(resolved, learner.device, learner.ranks, base.data.store)
            loader = stack.enter_context(data.loader)
            fed[name] = FedSteps(learner, loader.iterate, options.steps, loader)
        cases: dict[str, Case] = {**fed, CHECKPOINT: lambda: time_snapshot(base)}
        measured = interleave(cases, options.repetitions)
        return record(options, base, measured, {name: fed[name].share for name in names})


def time_snapshot(base: Run) -> float:
    """Return the seconds that a checkpoint takes from the training thread, per step."""
    started = time.perf_counter()
    snapshot(*base, TrainingProgress(), base.learner.quality.sums)
    return (time.perf_counter() - started) / base.learner.resolved.config.checkpoint_every


def record(
    options: TrainOptions, base: Run, measured: Mapping[str, Measured], shares: Mapping[str, float]
) -> dict[str, Any]:
    """Return the record; a ratio is the time with a reader over that with the constant batch.

    The ratio of the checkpoint is its time in the training thread, spread over the steps between
    two checkpoints.
    """
    config = base.learner.resolved.config
    baseline = measured[CONSTANT].median

    def digits(name: str) -> int:
        return 9 if name == CHECKPOINT else 4  # a checkpoint costs microseconds per step

    return make_record(
        "train",
        {
            **asdict(options),
            "algorithm": base.learner.algorithm.name,
            "model": config.model,
            "batch": config.batch,
            "threads": base.learner.device.threads,
            "loader_threads": base.learner.device.loader_threads,
        },
        [
            case.row(
                name,
                "seconds/step",
                digits(name),
                cpu_seconds=round(case.busy * case.median, 4),
                data_wait=round(shares.get(name, 0.0), 5),
            )
            for name, case in measured.items()
        ],
        {
            name: round(measured[name].median / baseline, digits(name))
            for name in (*shares, CHECKPOINT)
        },
        data_wait={name: round(share, 5) for name, share in shares.items()},
        says=bottleneck(shares) + idle_cores(measured[CONSTANT].busy, base.learner.device.threads),
    )


def bottleneck(shares: Mapping[str, float]) -> str:
    """Return a sentence that names the bottleneck and the key to change."""
    slow = [name for name, share in shares.items() if share > MAX_WAIT]
    if not slow:
        return "The model is the bottleneck: it waits for data with none of the readers."
    fast = [name for name in shares if name not in slow]
    fix = f"use reader={fast[0]}, or more loader_threads" if fast else "use more loader_threads"
    return f"The model waits for data with {', '.join(slow)}: {fix}."


def idle_cores(busy: float, threads: int) -> str:
    """Return a sentence if the step itself leaves cores idle, else nothing."""
    if busy >= FEW_BUSY * threads:
        return ""
    return (
        f" The constant batch keeps {busy:.1f} of {threads} threads busy: other work shares the "
        "cores, or the batch is too small; measure on an idle machine, or use batch=64."
    )
