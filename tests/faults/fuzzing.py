"""What all fuzzing shares: bounds of time and memory, inputs, accidents."""

from __future__ import annotations

import io
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from PIL import Image

SECONDS = 240  # nothing that is fuzzed may take so long, even on a busy machine
GROWTH = 512 << 20  # bytes of memory by which it may raise the peak; torch itself is among them
SPACE = 2 << 30  # bytes of addresses after which an allocation fails, before the machine suffers


@contextmanager
def bounded(seconds: int = SECONDS, growth: int = GROWTH) -> Iterator[None]:
    """Fail what hangs, and what allocates out of proportion."""

    def late(number: int, frame: Any) -> None:
        raise AssertionError(f"hangs for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPACE
    soft = most if limits[0] == resource.RLIM_INFINITY else min(most, limits[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (soft, limits[1]))
    # There is one such timer, and pytest-timeout may have set it for the whole test.
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, outer)  # 0 where there was none
        resource.setrlimit(resource.RLIMIT_AS, limits)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10
    assert grown <= growth, f"takes {grown >> 20:,} MB"


def fuzz(tries: int, **inputs: Any) -> Callable[[Callable[..., None]], None]:
    """Run a function on so many inputs, the same ones every time."""

    def run(function: Callable[..., None]) -> None:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        chosen = settings(
            max_examples=tries, derandomize=True, database=None, deadline=None,
            suppress_health_check=checks,
        )  # fmt: skip
        chosen(given(**inputs)(function))()

    return run


def corrupted(photo: bytes, dice: random.Random) -> bytes:
    """Return a image's bytes after an accident."""
    data = bytearray(photo)
    for _ in range(dice.choice([1, 1, 3, 20])):
        place = dice.randrange(len(data)) if dice.random() < 0.6 else dice.randrange(64) % len(data)
        kind = dice.randrange(4)
        if kind == 0:
            data[place] = dice.randrange(256)
        elif kind == 1:
            del data[place : place + dice.randrange(1, 40)]
        elif kind == 2:
            data[place:place] = dice.randbytes(dice.randrange(1, 40))
        else:
            data[place : place + 4] = b"\xff\xff\xff\xff"
        if not data:
            break
    return bytes(data)


def seeds() -> dict[str, bytes]:
    """Return sound images in many formats."""
    random_ = np.random.default_rng(0)
    photo = Image.fromarray(random_.integers(0, 256, (24, 20, 3), dtype=np.uint8))
    found = {}
    for name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000"):
        file = io.BytesIO()
        photo.save(file, name)
        found[name.lower()] = file.getvalue()
    return found
