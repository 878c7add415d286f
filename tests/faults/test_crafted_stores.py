"""Crafted stores in processes of their own: no crash, no traceback, bounded memory, exit code 3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.small_stores import make_store

BATCH = 250  # stores in one process
GROWTH = 512 << 20  # bytes by which a batch may raise the peak memory of its process
SECONDS = 900


def try_batch(bases: Path, first: int, last: int) -> tuple[list[dict[str, Any]], str]:
    """Return what became of the stores, and how the process ended where it did not end well."""
    words = [sys.executable, "-m", "tests.faults.crafted_stores", str(bases), str(first), str(last)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=SECONDS, cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ended = "" if done.returncode == 0 else f"{lines[-1:]} ended it with {done.returncode}"
    return lines, f"{ended}\n{done.stderr[-2000:]}" if ended else ""


def test_crafted_stores_are_refused_and_crash_nothing(tmp_path, tally, times):
    count = tally("crafted stores, every checksum right")
    make_store(tmp_path / "raw", count=16, size=16)
    make_store(tmp_path / "jpeg", count=16, size=32, quality=90)
    total, began, growth, refused = times(40, 2_000), time.monotonic(), 0, 0
    for first in range(0, total, BATCH):
        lines, ended = try_batch(tmp_path, first, min(first + BATCH, total))
        assert not ended, ended
        start = lines[0]["start"]
        for found in (line for line in lines if "code" in line):
            with count:
                assert found["code"] in (0, 3), found
                assert found["code"] == 0 or len(found["message"].splitlines()) == 2, found
                assert found["peak"] - start <= GROWTH, found
            refused += found["code"] == 3
            growth = max(growth, found["peak"] - start)
    assert count.tried == total and refused > total / 2
    count.facts = {
        "refused": refused,
        "most_memory_mb": growth >> 20,
        "seconds": round(time.monotonic() - began),
    }
