"""The time of one training step: ours against the same step written the reference way.

FlexMatch on images that are random and already views: what is measured is forward, backward,
optimizer, moving average and curriculum. Both ways take the same batches from the same weights,
and their losses are compared in double precision before anything is timed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from fastssl.errors import ConfigError
from fastssl.profiling import collectives
from fastssl.profiling.measure import Measured, environment, interleave
from fastssl.profiling.parts import make_batch, make_run, widen
from fastssl.profiling.reference import Reference
from fastssl.training import take_step

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
    apart = compare(asked)
    cases = {"fastssl": ours(asked), "fastssl, forward=split": ours(asked, "split")}
    if asked.device == "cpu":
        cases["reference"] = reference(asked)
    if asked.compiled:
        cases["fastssl, compiled"] = ours(asked, compiled=True)
    measured = interleave(cases, asked.repetitions)
    shares = where_time_goes(ours(asked))
    theirs = where_time_goes(reference(asked)) if asked.device == "cpu" else []
    exchanged = collectives.count(asked.model, asked.batch, asked.size, asked.ranks)
    return _record(asked, measured, apart, shares, theirs, exchanged)


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
        mine = float(take_step(run, batch, step, progress).loss.detach())
        theirs = float(other.step(batch))
        apart = max(apart, abs(mine - theirs) / abs(theirs))
    if not apart <= CLOSE:
        raise AssertionError(f"the two ways differ: {apart:.2g} of the loss")
    return apart


def _reference(asked: Options, run: Any) -> Reference:
    classes, threshold = run.quality.classes, run.loaded.settings.threshold
    return Reference(copy.deepcopy(run.model), asked.images, classes, threshold)


def ours(asked: Options, forward: str = "together", compiled: bool = False) -> Callable[[], float]:
    """Return a case that takes steps of ours and returns seconds a step."""
    run = make_run(
        asked.model, asked.batch, asked.size, asked.images, forward=forward, device=asked.device
    )
    if compiled:
        from fastssl.compiling import Compiled

        run.step = Compiled(run.algorithm.step, "step", 1, lambda line: None)
    progress = torch.zeros((), device=asked.device)
    batches = [make_batch(asked.batch, asked.size, asked.images, n, asked.device) for n in range(4)]
    done = 0

    def case() -> float:
        nonlocal done
        started = time.perf_counter()
        for _ in range(asked.steps):
            take_step(run, batches[done % len(batches)], done, progress)
            done += 1
        if asked.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / asked.steps

    return case


def reference(asked: Options) -> Callable[[], float]:
    """Return a case that takes steps the reference way and returns seconds a step."""
    run = make_run(asked.model, asked.batch, asked.size, asked.images)
    other = _reference(asked, run)
    batches = [make_batch(asked.batch, asked.size, asked.images, n) for n in range(4)]
    plain = [  # as a DataLoader gives them
        type(b)(
            b.images.contiguous(),
            b.labels,
            {name: view.contiguous() for name, view in b.views.items()},
            b.position,
            b.everyone,
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


def where_time_goes(case: Callable[[], float], most: int = 12) -> list[dict[str, Any]]:
    """Profile a case once; return the operations that take most, with their share and time."""
    from torch.profiler import ProfilerActivity, profile

    case()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        case()
    rows = found.key_averages()
    total = sum(row.self_cpu_time_total for row in rows) or 1
    rows = sorted(rows, key=lambda row: -row.self_cpu_time_total)
    return [
        {
            "name": row.key,
            "share": round(row.self_cpu_time_total / total, 4),
            "ms": round(row.self_cpu_time_total / 1000, 3),
            "calls": row.count,
        }
        for row in rows[:most]
    ]


def _convolutions(shares: list[dict[str, Any]], of: str = "share") -> float:
    return float(sum(row[of] for row in shares if "conv" in row["name"]))


def _says(shares: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Say what the time goes to, and what makes the two ways differ."""
    told = (
        f"Convolutions take {_convolutions(shares):.0%} of the time: the arithmetic of the network "
        "is the limit."
    )
    if not theirs:
        return told
    parts = []
    for rows in (shares, theirs):
        heavy = _convolutions(rows, "ms")
        parts.append((heavy, sum(row["ms"] for row in rows) - heavy))
    (heavy, rest), (their_heavy, their_rest) = parts
    return (
        f"{told} The reference spends {their_heavy:.1f} ms in them and {their_rest:.1f} ms in its "
        f"other large operations, where ours spends {heavy:.1f} and {rest:.1f}."
    )


def _ratio(asked: Options, measured: Mapping[str, Measured]) -> dict[str, float]:
    mine = measured["fastssl"].median
    ratio = {"split": mine / measured["fastssl, forward=split"].median}
    if "reference" in measured:
        ratio = {"reference": measured["reference"].median / mine, **ratio}
    if asked.compiled:
        ratio["compiled"] = mine / measured["fastssl, compiled"].median
    return {name: round(value, 3) for name, value in ratio.items()}


def _record(
    asked: Options,
    measured: Mapping[str, Measured],
    apart: float,
    shares: list[dict[str, Any]],
    theirs: list[dict[str, Any]],
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
        "ratio": _ratio(asked, measured),
        "losses_apart": apart,
        "time": shares,
        "time_reference": theirs,
        "convolutions": round(_convolutions(shares), 3),
        **({"convolutions_reference": round(_convolutions(theirs), 3)} if theirs else {}),
        "collectives": exchanged,
        "says": (
            f"{_says(shares, theirs)} Over {asked.ranks} ranks a step makes {exchanged['calls']} "
            f"collectives of {exchanged['bytes']:,} bytes in all."
        ),
    }
