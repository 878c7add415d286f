"""What checkpoints take from a run: the snapshot in the training thread, the write beside it.

Steps are small (8 labelled images instead of 64), so that the share is an upper bound: the
snapshot is that of the whole model, and a longer step makes its share smaller.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from fastssl.config.schema import RunConfig
from fastssl.engine import checkpoint
from fastssl.engine.build import Learner, TrainingData
from fastssl.engine.loop import train_step
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.snapshot import snapshot
from fastssl.profiling.measure import Measured, environment, interleave
from fastssl.profiling.parts import make_batch, make_run
from fastssl.tracking.run_dir import RunFolder


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    model: str = "wrn-28-2"
    """Network."""
    batch: int = 8
    """Labelled images a step; seven times as many unlabelled ones."""
    size: int = 32
    """Pixels of a side."""
    images: int = 50_000
    """Unlabelled images that are marked."""
    every: int = int(RunConfig.model_fields["checkpoint_every"].default)
    """Steps between checkpoints."""
    repetitions: int = 7
    """Counted rounds; one more warms up."""


def run(**options: Any) -> dict[str, Any]:
    """Measure a step, a snapshot and a write; return the record."""
    asked = Options(**options)
    made = make_run(asked.model, asked.batch, asked.size, asked.images)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        folder.checkpoints.mkdir()
        measured = interleave(cases(asked, made, folder), asked.repetitions)
        size = max(path.stat().st_size for path in checkpoint.files(folder))
    return record(asked, measured, size)


def some_data() -> TrainingData:
    """Return what a snapshot reads of a run's data."""
    store = SimpleNamespace(
        fingerprint="0" * 64,
        class_names=[str(number) for number in range(10)],
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        splits={"test": SimpleNamespace(height=32)},
        manifest={"resize": "squash"},
    )
    return cast(TrainingData, SimpleNamespace(store=store, size=(32, 32)))


def cases(asked: Options, made: Learner, folder: RunFolder) -> dict[str, Callable[[], float]]:
    """Return the three things to measure, each giving its seconds."""
    batch = make_batch(asked.batch, asked.size, asked.images, 0)
    data, progress = some_data(), torch.zeros(())
    kept: dict[str, Any] = {}

    def step() -> float:
        began = time.perf_counter()
        float(train_step(made, batch, 0, progress).loss.detach())
        return time.perf_counter() - began

    def take() -> float:
        began = time.perf_counter()
        kept["content"] = snapshot(made, data, TrainingProgress(), made.quality.sums)
        return time.perf_counter() - began

    def write() -> float:
        began = time.perf_counter()
        writer = checkpoint.Writer(folder)
        writer.save(checkpoint.step_name(1), kept["content"])
        writer.wait()
        writer.close()
        return time.perf_counter() - began

    take()
    return {"step": step, "snapshot": take, "write": write}


def record(asked: Options, measured: dict[str, Measured], size: int) -> dict[str, Any]:
    """Put the record together; the shares are of the time between two checkpoints."""
    between = asked.every * measured["step"].median
    names = {
        "step": "one step",
        "snapshot": "snapshot, in the training thread",
        "write": "seal, write and sync, in a thread of its own",
    }
    return {
        "what": "checkpoint",
        "environment": environment(),
        "settings": asdict(asked),
        "results": [
            {
                "name": names[name],
                "rate": found.median,
                "unit": "s",
                "spread": found.spread,
                "values": list(found.values),
            }
            for name, found in measured.items()
        ],
        "bytes": size,
        "ratio": {
            "training_thread": measured["snapshot"].median / between,
            "with_the_write": (measured["snapshot"].median + measured["write"].median) / between,
        },
    }
