"""How much work Python does, by a count that is the same on a busy machine and on an idle one."""

from __future__ import annotations

import cProfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Calls:
    """How many functions, compiled ones included, this thread has called in a block."""

    number: int = 0


@contextmanager
def count_calls() -> Iterator[Calls]:
    """Count the calls of a block; the number is there when the block has ended."""
    made, profiler = Calls(), cProfile.Profile()
    profiler.enable()
    try:
        yield made
    finally:
        profiler.disable()
        made.number = sum(entry.callcount for entry in profiler.getstats())
