"""torch.compile of the step: when it is used, what was decided, and what became of it."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fastssl.algorithms.base import Nets, Step, StepOutput
from fastssl.engine.build import Run
from fastssl.errors import ResourceError

SHORT = 3600  # seconds; below, compiling costs a run on a CPU more than it can give back
WARMUP = 3  # calls in which compiling is expected
TIMED = 3  # steps timed each way

Tell = Callable[[str], None]


def choose(run: Run, step: int, tell: Tell) -> None:
    """Decide how the step is run, and write what `auto` chose into the run's configuration."""
    mode: str = run.resolved.config.compile
    if mode == "auto":
        mode, why = decide(run, step, tell)
        tell(f"compile {mode}: {why}")
        config = run.resolved.config.model_copy(update={"compile": mode})
        run.resolved = replace(run.resolved, config=config)
    if mode != "off":
        run.step = Compiled(run.algorithm.step, mode, run.ranks.world, tell)


def decide(run: Run, step: int, tell: Tell) -> tuple[str, str]:
    """Choose for `auto`: on CUDA always, on a CPU by measurement where a run is long."""
    if run.device.device.type == "cuda":
        return "step", "auto compiles on CUDA"
    if run.ranks.world > 1:
        return "off", "auto does not compile over CPU ranks"
    tell("compile: measuring a few steps, which are thrown away")
    batch = run.loader.batch(step)
    eager = seconds(run, batch, run.algorithm.step)
    expected = eager * (run.resolved.config.steps - step)
    if expected < SHORT:
        return "off", f"the run takes about {expected / 60:.0f} min, too short to gain by it"
    tell("compile: measuring the same steps compiled, which may take minutes")
    try:
        compiled = seconds(run, batch, Compiled(run.algorithm.step, "step", 1, _silent))
    except ResourceError as error:
        return "off", error.what
    finally:
        torch._dynamo.reset()
    told = f"measured {1000 * eager:.0f} ms a step as written, {1000 * compiled:.0f} ms compiled"
    return ("step" if compiled < eager else "off"), told


def seconds(run: Run, batch: Any, step: Step) -> float:
    """Return the median time of forward and backward on copies that are thrown away."""
    student = copy.deepcopy(run.model).train()
    nets, state = Nets(student, run.ema.model), copy.deepcopy(run.state)
    progress = torch.zeros((), device=run.device.device)
    times = []
    for _ in range(TIMED + 1):
        began = time.perf_counter()
        with run.device.autocast():
            out = step(nets, batch, state, run.resolved.settings, progress, run.ranks)
        out.loss.backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - began)
        student.zero_grad(set_to_none=True)
    return statistics.median(times[1:])


class Compiled:
    """A compiled step that says by name what breaks its graph or compiles it anew."""

    def __init__(
        self, step: Step, mode: str, world: int, tell: Tell, backend: str = "inductor"
    ) -> None:
        if world > 1:
            # DDP's own graph splitting does not go with static_graph; its wrapper breaks the graph.
            torch._dynamo.config.optimize_ddp = False
        how: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"} if mode == "max" else {}
        # Alone, one graph is demanded; ranks exchange things in the midst of a step.
        self.compiled: Step = torch.compile(step, fullgraph=world == 1, backend=backend, **how)
        self.tell = tell
        self.calls = 0
        self._cached = cached()
        self._breaks: set[str] = set()
        self._graphs = 0

    def __call__(self, *arguments: Any) -> StepOutput:
        """Take a step."""
        if not self.calls:
            self.tell("compile: the first step takes minutes where nothing is cached yet")
        try:
            out = self.compiled(*arguments)
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ResourceError(
                f"the step can't be compiled: {lines[0]}", "type compile=off"
            ) from error
        self.calls += 1
        if self.calls == 1 and cached() > self._cached:
            self.tell("compile: a warm start, from the cache on disk")
        self._look()
        return out

    def _look(self) -> None:
        """Tell graph breaks once each, and every graph compiled after the warm-up."""
        counters = torch._dynamo.utils.counters
        graphs = counters["stats"]["unique_graphs"]
        if graphs == self._graphs and self.calls > 1:
            return
        for name in counters["graph_break"].keys() - self._breaks:
            self._breaks.add(name)
            self.tell(f"compile: graph break: {' '.join(name.split())[:200]}")
        if graphs != self._graphs and self.calls > WARMUP:
            self.tell(f"compile: compiled anew in call {self.calls}: {_why()}")
        self._graphs = graphs


def cached() -> int:
    """Return how many graphs this process took from the compiler's cache on disk."""
    return int(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"])


def _why() -> str:
    """Return the reason that the compiler gives for its last work."""
    found = torch._dynamo.utils.get_compilation_metrics()
    last = found[-1] if found else None
    if last is None or not last.recompile_reason:
        return "the compiler gives no reason"
    return f"{last.co_name}: {' '.join(last.recompile_reason.split())[:200]}"


def _silent(line: str) -> None:
    """Say nothing: what is measured is thrown away."""
