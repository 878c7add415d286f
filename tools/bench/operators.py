"""Which operators take the time of a step, and how fast its convolutions are."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

Profile = list[dict[str, Any]]  # operators, the slowest first
SIDE = 2048  # height and width of the matrices of the comparison product


def profile_operators(case: Callable[[], float], most: int = 12) -> Profile:
    """Profile a case once; return the operators that take most of its time."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it warns of missing GPUs
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


def gflops(case: Callable[[], float], profiles: Mapping[str, Profile]) -> dict[str, float]:
    """Return GFLOP/s: of the convolutions of each profile, and of a matrix product."""
    with FlopCounterMode(display=False) as counter:
        case()
    counts = counter.get_flop_counts()["Global"]
    work = sum(count for op, count in counts.items() if "conv" in str(op))
    rates = {name: work / convolutions(rows, "ms") / 1e6 for name, rows in profiles.items()}
    return {name: round(rate, 1) for name, rate in {**rates, "product": product()}.items()}


def product() -> float:
    """Return GFLOP/s of a product of two large matrices."""
    left, right = torch.rand(2, SIDE, SIDE)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - started)
    return 2e-9 * SIDE**3 / statistics.median(times)


def convolutions(rows: Profile, of: str = "share") -> float:
    """Return the share, or the milliseconds, of the convolutions."""
    return float(sum(row[of] for row in rows if "conv" in row["name"]))


def summarize(profiles: Mapping[str, Profile], rates: Mapping[str, float]) -> str:
    """Return a sentence on what takes the time, and where the two steps differ."""
    parts = []
    for rows in profiles.values():
        heavy = convolutions(rows, "ms")
        parts.append((heavy, sum(row["ms"] for row in rows) - heavy))
    (heavy, rest), (their_heavy, their_rest) = parts
    return (
        f"Convolutions take {convolutions(profiles['fastssl']):.0%} of the time, at "
        f"{rates['fastssl']:.0f} GFLOP/s, where a product of large matrices reaches "
        f"{rates['product']:.0f} on this machine: its arithmetic is the limit. The reference "
        f"spends {their_heavy:.1f} ms in them ({rates['reference']:.0f} GFLOP/s) and "
        f"{their_rest:.1f} ms in its other large operators, where ours spends {heavy:.1f} and "
        f"{rest:.1f}."
    )
