"""The time of one training step: ours against the same step written the reference way.

FlexMatch on images that are random and already views: what is measured is forward, backward,
optimizer, moving average and curriculum. Both ways take the same batches from the same weights,
and their losses are compared in double precision before anything is timed. The reference has a
process of its own, so that it runs with the C library's memory as it comes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from fastssl.engine import host_memory
from fastssl.engine.loop import train_step
from fastssl.errors import ConfigError
from fastssl.profiling import collectives
from fastssl.profiling.apart import Apart
from fastssl.profiling.measure import Measured, environment, interleave
from fastssl.profiling.parts import make_batch, make_run, widen
from fastssl.profiling.reference import Reference
from fastssl.profiling.where_time import arithmetic, says, where_time_goes

CLOSE = 1e-6  # largest relative difference of losses in double precision
CHECKED = 2  # steps


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    model: str = "wrn-28-2"
    """Network."""
    batch: int = 8
    """Labelled images a step; seven times as many unlabelled ones."""
    size: int = 32
    """Pixels of a side."""
    images: int = 50_000
    """Unlabelled images that are marked."""
    threads: int = 0
    """Threads; 0: all cores."""
    steps: int = 1
    """Steps of one repetition."""
    repetitions: int = 7
    """Counted rounds; one more warms up."""
    compiled: bool = False
    """Measure the compiled step too; compiling takes minutes."""
    ranks: int = 2
    """Ranks for which collectives are counted."""
    device: str = "cpu"
    """cpu or cuda; the reference is measured on a CPU only."""


def run(options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = _options({**(options or {}), **more})
    if asked.threads:
        torch.set_num_threads(asked.threads)
    host_memory.keep()  # as in a training
    apart = compare(asked)
    cases: dict[str, Callable[[], float]] = {
        "fastssl": ours(asked),
        "fastssl, forward=split": ours(asked, "split"),
    }
    if asked.device == "cpu":
        cases["fastssl, precision=bf16"] = ours(asked, precision="bf16")
    if asked.compiled:
        cases["fastssl, compiled"] = ours(asked, compiled=True)
    with ExitStack() as stack:
        if asked.device == "cpu":
            cases["reference"] = stack.enter_context(Apart(reference, asked))
        measured = interleave(cases, asked.repetitions)
    profiles = {"fastssl": where_time_goes(cases["fastssl"])}
    if asked.device == "cpu":
        with Apart(profiled_reference, asked) as case:
            profiles["reference"] = case()
    rates = arithmetic(cases["fastssl"], profiles) if asked.device == "cpu" else {}
    exchanged = collectives.count(asked.model, asked.batch, asked.size, asked.ranks)
    return _record(asked, measured, apart, profiles, rates, exchanged)


def _options(given: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise ConfigError(f"step has no option {name!r}", f"take: {', '.join(sorted(known))}")
    asked = Options(**given)
    if min(asked.batch, asked.steps, asked.repetitions, asked.ranks) < 1:
        raise ConfigError(
            "a step is measured with positive numbers",
            "type batch=8 steps=1 repetitions=7 ranks=2, or more",
        )
    return asked


def compare(asked: Options) -> float:
    """Take steps both ways in double precision; return how far the losses are apart."""
    run = make_run(asked.model, asked.batch, asked.size, asked.images, double=True)
    other = _reference(asked, run)
    progress = torch.zeros(())
    apart = 0.0
    for step in range(CHECKED):
        batch = widen(make_batch(asked.batch, asked.size, asked.images, step))
        mine = float(train_step(run, batch, step, progress).loss.detach())
        theirs = float(other.step(batch))
        apart = max(apart, abs(mine - theirs) / abs(theirs))
    if not apart <= CLOSE:
        raise AssertionError(f"the two ways differ: {apart:.2g} of the loss")
    return apart


def _reference(asked: Options, run: Any) -> Reference:
    classes, threshold = run.quality.classes, run.resolved.settings.threshold
    return Reference(copy.deepcopy(run.model), asked.images, classes, threshold)


def ours(
    asked: Options, forward: str = "together", compiled: bool = False, precision: str = ""
) -> Callable[[], float]:
    """Return a case that takes steps of ours and returns seconds a step."""
    run = make_run(
        asked.model, asked.batch, asked.size, asked.images, forward=forward, device=asked.device
    )
    if precision:
        run.device = replace(run.device, precision=precision)
    if compiled:
        from fastssl.engine.compilation import Compiled

        run.step = Compiled(run.algorithm.step, "step", 1, lambda line: None)
    progress = torch.zeros((), device=asked.device)
    batches = [make_batch(asked.batch, asked.size, asked.images, n, asked.device) for n in range(4)]
    done = 0

    def case() -> float:
        nonlocal done
        started = time.perf_counter()
        for _ in range(asked.steps):
            train_step(run, batches[done % len(batches)], done, progress)
            done += 1
        if asked.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / asked.steps

    return case


def reference(asked: Options) -> Callable[[], float]:
    """Return a case that takes steps the reference way and returns seconds a step."""
    if asked.threads:
        torch.set_num_threads(asked.threads)
    run = make_run(asked.model, asked.batch, asked.size, asked.images)
    other = _reference(asked, run)
    batches = [make_batch(asked.batch, asked.size, asked.images, n) for n in range(4)]
    plain = [  # as a DataLoader gives them
        type(b)(
            b.images.contiguous(),
            b.labels,
            {name: view.contiguous() for name, view in b.views.items()},
            b.position,
            b.global_positions,
            b.key,
        )
        for b in batches
    ]
    done = 0

    def case() -> float:
        nonlocal done
        started = time.perf_counter()
        for _ in range(asked.steps):
            other.step(plain[done % len(plain)])
            done += 1
        return (time.perf_counter() - started) / asked.steps

    return case


def profiled_reference(asked: Options) -> Callable[[], list[dict[str, Any]]]:
    """Return a case that profiles the reference way."""
    return lambda: where_time_goes(reference(asked))


def _ratio(measured: Mapping[str, Measured]) -> dict[str, float]:
    mine = measured["fastssl"].median
    ratio = {}
    if "reference" in measured:
        ratio["reference"] = measured["reference"].median / mine
    for name, case in measured.items():
        if name.startswith("fastssl, "):
            ratio[name.rpartition("=")[2].removeprefix("fastssl, ")] = mine / case.median
    return {name: round(value, 3) for name, value in ratio.items()}


def _record(
    asked: Options,
    measured: Mapping[str, Measured],
    apart: float,
    profiles: Mapping[str, list[dict[str, Any]]],
    rates: dict[str, float],
    exchanged: dict[str, Any],
) -> dict[str, Any]:
    images = 8 * asked.batch
    return {
        "what": "step",
        "environment": environment(),
        "settings": asdict(asked),
        "results": [
            {
                "name": name,
                "rate": round(images / case.median, 2),
                "unit": "images/s",
                "ms": round(1000 * case.median, 2),
                "spread": round(1000 * case.spread, 2),
                "busy": round(case.busy, 2),
            }
            for name, case in measured.items()
        ],
        "ratio": _ratio(measured),
        "losses_apart": apart,
        "time": profiles,
        "gflops": rates,
        "collectives": exchanged,
        "says": (
            f"{says(profiles, rates)} Over {asked.ranks} ranks a step makes {exchanged['calls']} "
            f"collectives of {exchanged['bytes']:,} bytes in all."
        ),
    }
