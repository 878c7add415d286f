"""torch.compile of the step: whether to use it, and what the compiler reports."""

from __future__ import annotations

import copy
import logging
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fastssl.algorithms.base import Step, StepOutput
from fastssl.engine.accumulate import backward
from fastssl.engine.build import Learner
from fastssl.errors import ResourceError
from pipelines.loader.batch import Batch
from pipelines.loader.loader import Loader

SHORT = 3600  # seconds; compiling costs a shorter run on a CPU more than it saves
WARMUP = 3  # calls in which compiling is expected
TIMED = 3  # steps timed with and without compiling

logger = logging.getLogger(__name__)


def choose(learner: Learner, loader: Loader, step: int) -> None:
    """Compile the step if `compile` asks for it; enter what `auto` chose in the config."""
    mode: str = learner.resolved.config.compile
    if mode == "auto":
        mode, why = decide(learner, loader, step)
        logger.info(f"compile {mode}: {why}")
        config = learner.resolved.config.model_copy(update={"compile": mode})
        learner.resolved = replace(learner.resolved, config=config)
    if mode != "off":
        logger.info("compile: the first step takes minutes where nothing is cached yet")
        learner.step = Compiled(learner.algorithm.step, mode, learner.ranks.world)


def is_possible(learner: Learner, expected: float) -> bool:
    """Return whether a run that takes `expected` seconds as written may be compiled."""
    mode = learner.resolved.config.compile
    if mode != "auto" or learner.device.device.type == "cuda":
        return mode != "off"
    return learner.ranks.world == 1 and expected >= SHORT


def decide(learner: Learner, loader: Loader, step: int) -> tuple[str, str]:
    """Return the mode that `auto` chooses, and why: on a CPU a long run is measured."""
    if learner.device.device.type == "cuda":
        return "step", "auto compiles on CUDA"
    if learner.ranks.world > 1:
        return "off", "auto does not compile over CPU ranks"
    logger.info("compile: measuring a few steps, which are thrown away")
    batch = loader.batch(max(step, learner.resolved.config.supervised_steps))
    eager = seconds(learner, batch, learner.algorithm.step)
    expected = eager * (learner.resolved.config.steps - step)
    if expected < SHORT:
        return "off", f"the run takes about {expected / 60:.0f} min, too short to gain by it"
    logger.info("compile: measuring the same steps compiled, which may take minutes")
    try:
        compiled = seconds(learner, batch, Compiled(learner.algorithm.step, "step", 1))
    except ResourceError as error:
        return "off", error.what
    finally:
        torch._dynamo.reset()
    why = f"measured {1000 * eager:.0f} ms a step as written, {1000 * compiled:.0f} ms compiled"
    return ("step" if compiled < eager else "off"), why


def seconds(learner: Learner, batch: Batch, step: Step) -> float:
    """Return the median time of forward and backward on copies that are thrown away."""
    return median_time(rehearsal(learner, batch, step))


def rehearsal(learner: Learner, batch: Batch, step: Step) -> Callable[[], None]:
    """Return a function that runs forward and backward on copies and changes nothing of the run."""
    student = copy.deepcopy(learner.model).train()
    state, quality = copy.deepcopy((learner.state, learner.quality))
    copied = replace(
        learner, model=student, student=student, state=state, quality=quality, step=step
    )

    def run() -> None:
        with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
            backward(copied, batch)
        student.zero_grad(set_to_none=True)

    return run


def median_time(
    run: Callable[[], object],
    until: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the median seconds of some calls, without the first one, which warms up.

    No call but the first begins that would end after `until` if it took as long as the one before.
    The first one counts if it is the only one.
    """
    times: list[float] = []
    while len(times) <= TIMED and (not times or clock() + times[-1] <= until):
        began = clock()
        run()
        times.append(clock() - began)
    return statistics.median(times[1:] or times)


class Compiled:
    """A compiled step that logs graph breaks and recompilations by name."""

    def __init__(self, step: Step, mode: str, world: int, backend: str = "inductor") -> None:
        if world > 1:
            # DDP's own graph splitting does not work with static_graph.
            torch._dynamo.config.optimize_ddp = False
        how: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"} if mode == "max" else {}
        # One process requires one graph. With ranks, collectives inside a step break it.
        self.compiled: Step = torch.compile(step, fullgraph=world == 1, backend=backend, **how)
        self.calls = 0
        self._counters = torch._dynamo.utils.counters
        self._hits = self._counters["inductor"]["fxgraph_cache_hit"]
        # Counts of the process: what other steps broke is not reported here.
        self._breaks: dict[str, float] = dict(self._counters["graph_break"])
        self._graphs = 0

    def __call__(self, *arguments: Any) -> StepOutput:
        """Run the step; log what the compiler did."""
        try:
            out = self.compiled(*arguments)
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ResourceError(
                f"the step can't be compiled: {lines[0]}", "type compile=off"
            ) from error
        self.calls += 1
        graphs = self._counters["stats"]["unique_graphs"]
        if graphs != self._graphs or self.calls == 1:
            self._log_compiler()
        self._graphs = graphs
        return out

    def _log_compiler(self) -> None:
        """Log a start from the cache, each graph break once, and graphs after the warm-up."""
        if self.calls == 1 and self._counters["inductor"]["fxgraph_cache_hit"] > self._hits:
            logger.info("compile: a warm start, from the cache on disk")
        for name, count in self._counters["graph_break"].items():
            if count <= self._breaks.get(name, 0):
                continue
            self._breaks[name] = math.inf
            logger.info(f"compile: graph break: {' '.join(name.split())[:200]}")
        if self.calls > WARMUP:
            found = torch._dynamo.utils.get_compilation_metrics()
            last = found[-1] if found else None
            why = "the compiler gives no reason"
            if last and last.recompile_reason:
                why = f"{last.co_name}: {' '.join(last.recompile_reason.split())[:200]}"
            logger.info(f"compile: compiled anew in call {self.calls}: {why}")
