"""How many cores this process can use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipelines.cgroups import group_folders


def available_cpus() -> int:
    """Return the cores that this process may use: its affinity, up to its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        cores = os.cpu_count() or 1
    quotas = (quota for group in group_folders("cpu") for quota in _read(*group))
    # A quota of 1.5 cores keeps two threads busy for three quarters of the time.
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas)]))


def _read(version: int, folder: Path) -> Iterator[float]:
    """Yield the quota of a group in cores, if it has one."""
    with suppress(OSError, ValueError):  # no such group here, or its quota is "max"
        if version == 2:
            quota, period = map(int, (folder / "cpu.max").read_text().split())
        else:
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            period = int((folder / "cpu.cfs_period_us").read_text())
        if quota > 0 and period > 0:  # -1 is no quota in version 1
            yield quota / period
