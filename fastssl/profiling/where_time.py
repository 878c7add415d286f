"""Where the time of a step goes, and how near its arithmetic is to what the machine can do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

Profile = list[dict[str, Any]]  # operations, the longest first
SIDE = 2048  # of the matrices that are multiplied for comparison


def where_time_goes(case: Callable[[], float], most: int = 12) -> Profile:
    """Profile a case once; return the operations that take most, with their share and time."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes of GPUs that are not there
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


def arithmetic(case: Callable[[], float], profiles: Mapping[str, Profile]) -> dict[str, float]:
    """Return 10^9 operations a second: in the convolutions of each profile, and in a product."""
    with FlopCounterMode(display=False) as counter:
        case()
    counts = counter.get_flop_counts()["Global"]
    work = sum(count for op, count in counts.items() if "conv" in str(op))
    rates = {name: work / convolutions(rows, "ms") / 1e6 for name, rows in profiles.items()}
    return {name: round(rate, 1) for name, rate in {**rates, "product": product()}.items()}


def product() -> float:
    """Return 10^9 operations a second of a product of two large matrices."""
    left, right = torch.rand(2, SIDE, SIDE)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - started)
    return 2e-9 * SIDE**3 / statistics.median(times)


def convolutions(rows: Profile, of: str = "share") -> float:
    """Return the share, or the ms, of the convolutions."""
    return float(sum(row[of] for row in rows if "conv" in row["name"]))


def says(profiles: Mapping[str, Profile], rates: Mapping[str, float]) -> str:
    """Say what the time goes to, and what makes the two ways differ."""
    mine = profiles["fastssl"]
    told = f"Convolutions take {convolutions(mine):.0%} of the time"
    if not rates:
        return f"{told}: the arithmetic of the network is the limit."
    parts = []
    for rows in profiles.values():
        heavy = convolutions(rows, "ms")
        parts.append((heavy, sum(row["ms"] for row in rows) - heavy))
    (heavy, rest), (their_heavy, their_rest) = parts
    return (
        f"{told}, at {rates['fastssl']:.0f} GFLOP/s, where a product of large matrices reaches "
        f"{rates['product']:.0f} on this machine: its arithmetic is the limit. The reference "
        f"spends {their_heavy:.1f} ms in them ({rates['reference']:.0f} GFLOP/s) and "
        f"{their_rest:.1f} ms in its other large operations, where ours spends {heavy:.1f} and "
        f"{rest:.1f}."
    )
