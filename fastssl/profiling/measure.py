"""How everything is measured: interleaved, with median and spread, kept as a record."""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from fastssl.tracking.environment import describe
from pipelines.files import write_atomic

Case = Callable[[], float]  # does its work and returns its value


@dataclass(frozen=True)
class Measured:
    """The values of one case, one per repetition."""

    values: tuple[float, ...]
    busy: float
    """Cores in use, including child processes: the median of CPU time over elapsed time."""

    @property
    def median(self) -> float:
        """The median value."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The interquartile range, in the unit of the values."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return high - low

    def row(self, name: str, unit: str, digits: int = 1, **more: Any) -> dict[str, Any]:
        """Return the line of a record for values that are rates in `unit`."""
        rate, spread = round(self.median, digits), round(self.spread, digits)
        return {"name": name, "rate": rate, "unit": unit, "spread": spread, **more}


def interleave(
    cases: Mapping[str, Case], repetitions: int, warmup: int = 1, limit: float = math.inf
) -> dict[str, Measured]:
    """Run all cases in every round, and start each round with another case.

    If the machine is slow for a while, all cases are slowed alike. The first `warmup` rounds are
    not counted. No round starts later than after `limit` seconds, except the first counted one.
    """
    names = list(cases)
    values: dict[str, list[float]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}
    began = time.monotonic()
    for turn in range(warmup + repetitions):
        if turn > warmup and time.monotonic() - began > limit:
            break
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            started, cpu_before = time.perf_counter(), cpu_seconds()
            value = cases[name]()
            cpu, elapsed = cpu_seconds() - cpu_before, time.perf_counter() - started
            if turn >= warmup:
                values[name].append(value)
                busy[name].append(cpu / elapsed)
    return {name: Measured(tuple(values[name]), statistics.median(busy[name])) for name in names}


def rate(work: Callable[[], int], seconds: float = 0.0) -> float:
    """Repeat `work`, which returns an amount, for at least `seconds`; return amount per second."""
    done = 0
    started = time.perf_counter()
    while True:
        done += work()
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return done / elapsed


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children, running and ended."""
    process = psutil.Process()
    total = sum(process.cpu_times()[:4])  # user, system, and those of ended children
    for child in process.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it has just ended
            continue
    return float(total)


def make_record(
    what: str,
    settings: Mapping[str, Any],
    results: list[dict[str, Any]],
    ratio: Mapping[str, float],
    **more: Any,
) -> dict[str, Any]:
    """Return the object that `fastssl profile --json` prints, without absolute paths."""
    overrides = [_relative(override) for override in settings.get("overrides", ())]
    return {
        "what": what,
        "environment": environment(),
        "settings": {**settings, "overrides": overrides} if overrides else dict(settings),
        "results": results,
        "ratio": dict(ratio),
        **more,
    }


def environment(command: str | None = None) -> dict[str, Any]:
    """Return where, when and by which command a record was made."""
    return {
        "command": command or command_line(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe()["processor"],
        **describe(),
    }


def command_line(arguments: Iterable[str]) -> str:
    """Return a command as it is typed in the working folder, without absolute paths."""
    return shlex.join(_relative(argument) for argument in arguments)


def _relative(argument: str) -> str:
    key, separator, value = argument.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return argument
    name = path.parent.name if path.name == "__main__.py" else path.name
    inside = path.is_relative_to(Path.cwd()) and path.parent.name != "bin"
    short = os.path.relpath(path) if inside and path.name != "__main__.py" else name
    return f"{key}{separator}{short}"


def save(record: Mapping[str, Any], folder: Path) -> Path:
    """Write a record to `WHAT.json` atomically; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in str(record["what"])).strip("-").lower()
    file = folder / f"{name}.json"
    write_atomic(file, f"{json.dumps(record, indent=1, ensure_ascii=False)}\n".encode())
    return file
