"""How everything here is measured: interleaved, with median and spread, kept as a record."""

from __future__ import annotations

import json
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

from fastssl.tracking.environment import facts


@dataclass(frozen=True)
class Measured:
    """What the repetitions of one case gave."""

    values: tuple[float, ...]
    busy: float
    """Cores kept busy, worker processes included: the median of processor time over time."""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The interquartile range, in the unit of the values."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return high - low


def interleave(
    cases: Mapping[str, Callable[[], float]], repetitions: int, warmup: int = 1
) -> dict[str, Measured]:
    """Run every case in turn, round after round, each round beginning with another case.

    A case does its work and returns its value, so that whatever slows the machine for a while
    slows all of them. The first `warmup` rounds are not counted.
    """
    names = list(cases)
    values: dict[str, list[float]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmup + repetitions):
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            started, before = time.perf_counter(), cpu_seconds()
            value = cases[name]()
            spent, passed = cpu_seconds() - before, time.perf_counter() - started
            if turn >= warmup:
                values[name].append(value)
                busy[name].append(spent / passed)
    return {name: Measured(tuple(values[name]), statistics.median(busy[name])) for name in names}


def rate(work: Callable[[], int], seconds: float) -> float:
    """Repeat `work`, which returns how much it did, for at least `seconds`; return the rate."""
    done = 0
    started = time.perf_counter()
    while True:
        done += work()
        passed = time.perf_counter() - started
        if passed >= seconds:
            return done / passed


def cpu_seconds() -> float:
    """Return the processor time of this process and of its children, living and ended."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:4])
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it has just ended
            continue
    return float(total)


def environment(command: str | None = None) -> dict[str, Any]:
    """Return what a record must say of where and how it was made."""
    return {
        "command": command or command_line(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts()["processor"],
        **facts(),
    }


def command_line(words: Iterable[str]) -> str:
    """Return a command as one would type it in the working folder: no path of this machine."""
    return shlex.join(_relative(word) for word in words)


def _relative(word: str) -> str:
    key, mark, value = word.rpartition("=")
    place = Path(value)
    if not place.is_absolute():
        return word
    name = place.parent.name if place.name == "__main__.py" else place.name
    inside = place.is_relative_to(Path.cwd()) and place.parent.name != "bin"
    short = os.path.relpath(place) if inside and place.name != "__main__.py" else name
    return f"{key}{mark}{short}"


def save(record: Mapping[str, Any], folder: Path) -> Path:
    """Write a record as `WHAT.json`, whole or not at all; return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in str(record["what"])).strip("-").lower()
    file = folder / f"{name}.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    part.replace(file)
    return file
