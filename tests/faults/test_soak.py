"""A long run keeps its memory, its open files and its threads."""

from __future__ import annotations

import ctypes
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import runs
from tests.faults import fault_points

STEPS = 20_000
WORDS = [
    "batch=2",
    "ratio=1",
    "image_size=8",
    "padding=1",
    "lr=0.001",
    "log_every=100",
    "compile=off",
    "tensorboard=true",
]
PAUSES = ("eval_every", "eval_every_late", "checkpoint_every")


def watch(steps: int, into: Path) -> None:
    """Write down memory, files and threads after a tenth of the steps and near the end."""
    import psutil

    from fastssl.engine import loop

    real = loop.train_step
    me = psutil.Process()
    seen: dict[str, Any] = {}

    def train_step(learner: Any, batch: Any, step: int, *others: Any) -> Any:
        # Both a little before an evaluation; in the very last steps the loader is done.
        if step in (steps // 10 - 10, steps - 10):
            run_writer_idle()
            give_back()
            seen[str(step)] = {
                "resident": me.memory_info().rss,
                "files": me.num_fds(),
                "threads": me.num_threads(),
            }
            into.write_text(json.dumps(seen))
        return real(learner, batch, step, *others)

    def give_back() -> None:
        # A run keeps what it has freed, until protobuf, under TensorBoard, gives it all back at
        # some moment of its own: only what is in use can be compared.
        ctypes.CDLL(None).malloc_trim(0)

    def run_writer_idle() -> None:
        # A checkpoint may just be on its way to the disk; its copy is not a leak.
        for writer in writers:
            writer.wait()

    from fastssl.engine import checkpoint

    writers: list[Any] = []
    begin = checkpoint.Writer.__init__

    def remembered(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        writers.append(self)

    checkpoint.Writer.__init__ = remembered  # type: ignore[method-assign]
    loop.train_step = train_step


@pytest.mark.faults
def test_a_soak(tmp_path, tally, times):
    steps = times(400, STEPS)
    count = tally(f"soak of {steps:,} steps")
    message, seen = tmp_path / "message", tmp_path / "seen"
    with count:
        before = fault_points.quiet(message, partial(watch, steps, seen))
        often = [f"{key}={steps // 20}" for key in PAUSES]
        child = runs.start(tmp_path / "run", *WORDS, *often, f"steps={steps}", before=before)
        child.join(3600)
        assert runs.ended(child) == 0, message.read_text()
        early, late = json.loads(seen.read_text()).values()
        growth = late["resident"] / early["resident"] - 1
        count.facts = {
            "resident_MB_early": round(early["resident"] / 1e6, 1),
            "resident_MB_late": round(late["resident"] / 1e6, 1),
            "growth_percent": round(100 * growth, 2),
            "open_files": [early["files"], late["files"]],
            "threads": [early["threads"], late["threads"]],
        }
        assert abs(growth) <= 0.05
        assert early["files"] == late["files"] and early["threads"] == late["threads"]
