"""A long run keeps its memory, its open files and its threads."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import runs
from tests.faults import places

STEPS = 20_000
WORDS = [
    "batch=2",
    "ratio=1",
    "image_size=8",
    "padding=1",
    "lr=0.001",
    "log_every=100",
    "eval_every=2000",
    "eval_every_late=2000",
    "checkpoint_every=1000",
    "compile=off",
    "tensorboard=true",
]


def watch(steps: int, into: Path) -> None:
    """Write down memory, files and threads after a tenth of the steps and near the end."""
    import psutil

    from fastssl import training

    real = training.take_step
    me = psutil.Process()
    seen: dict[str, Any] = {}

    def take_step(run: Any, batch: Any, step: int, progress: Any) -> Any:
        if step in (steps // 10, steps - 10):  # in the very last steps the loader is done
            run_writer_idle()
            memory = me.memory_info()
            seen[str(step)] = {
                "resident": memory.rss,
                # The rest are pages of libraries' files, which a system takes back when idle.
                "own": memory.rss - memory.shared,
                "files": me.num_fds(),
                "threads": me.num_threads(),
            }
            into.write_text(json.dumps(seen))
        return real(run, batch, step, progress)

    def run_writer_idle() -> None:
        # A checkpoint may just be on its way to the disk; its copy is not a leak.
        for writer in writers:
            writer.wait()

    from fastssl import checkpoint

    writers: list[Any] = []
    begin = checkpoint.Writer.__init__

    def remembered(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        writers.append(self)

    checkpoint.Writer.__init__ = remembered  # type: ignore[method-assign]
    training.take_step = take_step


@pytest.mark.faults
def test_a_soak(tmp_path, tally, times):
    steps = times(400, STEPS)
    count = tally(f"soak of {steps:,} steps")
    told, seen = tmp_path / "told", tmp_path / "seen"
    with count:
        before = places.quiet(told, partial(watch, steps, seen))
        child = runs.start(tmp_path / "run", *WORDS, f"steps={steps}", before=before)
        child.join(3600)
        assert runs.ended(child) == 0, told.read_text()
        early, late = json.loads(seen.read_text()).values()
        growth = {kind: late[kind] / early[kind] - 1 for kind in ("resident", "own")}
        count.facts = {
            "resident_MB_early": round(early["resident"] / 1e6, 1),
            "resident_MB_late": round(late["resident"] / 1e6, 1),
            "growth_percent": round(100 * growth["resident"], 2),
            "growth_of_its_own_pages_percent": round(100 * growth["own"], 2),
            "open_files": [early["files"], late["files"]],
            "threads": [early["threads"], late["threads"]],
        }
        assert growth["resident"] <= 0.05 and abs(growth["own"]) <= 0.05
        assert early["files"] == late["files"] and early["threads"] == late["threads"]
