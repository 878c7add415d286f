"""Weak scaling: images a second of one process and of several, one thread and one batch each.

Each measurement is a torchrun of its own, and the numbers of processes take turns. A process
started by torchrun runs this module's `main` and prints seconds a step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fastssl.errors import ConfigError, ResourceError
from fastssl.profiling.measure import environment, interleave

WARMUP = 3  # DDP settles its buckets in the first steps


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    processes: int = 2
    """Largest number of processes."""
    model: str = "wrn-28-2"
    """Network."""
    batch: int = 8
    """Labelled images of one process."""
    size: int = 32
    """Pixels of a side."""
    steps: int = 6
    """Steps of one repetition."""
    repetitions: int = 3
    """Counted rounds; one more warms up."""


def run(options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Measure; return the record."""
    given = {**(options or {}), **more}
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"scaling has no option {name!r}", f"take: {', '.join(sorted(known))}"
            )
    asked = Options(**given)
    worlds = (1, asked.processes)
    cases = {str(world): _case(asked, world) for world in worlds}
    measured = interleave(cases, asked.repetitions)
    one, many = (measured[str(world)] for world in worlds)
    gain = many.median / one.median
    return {
        "what": "scaling",
        "environment": environment(),
        "settings": asdict(asked),
        "results": [
            {
                "name": f"{world} process{'es' if world > 1 else ''}",
                "rate": round(measured[str(world)].median, 2),
                "unit": "images/s",
                "spread": round(measured[str(world)].spread, 2),
            }
            for world in worlds
        ],
        "ratio": {"processes": round(gain, 3)},
        "says": (
            f"{asked.processes} processes learn {gain:.2f} times the images of one: "
            f"{gain / asked.processes:.0%} of what they could."
        ),
    }


def _case(asked: Options, world: int) -> Callable[[], float]:
    words = [str(value) for value in (asked.model, asked.batch, asked.size, asked.steps)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, f"--nproc-per-node={world}", "-m", "fastssl.profiling.scaling", *words]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def case() -> float:
        done = subprocess.run(
            command, env={**os.environ, **threads}, capture_output=True, text=True
        )
        if done.returncode:
            raise ResourceError("torchrun failed", done.stderr.strip()[-300:] or "no message")
        return float(json.loads(done.stdout.strip().splitlines()[-1])["images_per_s"])

    return case


def main(model: str, batch: int, size: int, steps: int) -> None:
    """Measure in one process of torchrun; rank 0 prints."""
    import torch

    from fastssl.distribute import join
    from fastssl.profiling.parts import RATIO, make_batch, make_run
    from fastssl.training import take_step

    torch.set_num_threads(1)
    group = join()
    ranks = group.ranks
    run = make_run(model, batch, size, 5000, ranks=ranks)
    batches = [make_batch(batch, size, 5000, seed, ranks=ranks) for seed in range(2)]
    progress = torch.zeros(())
    for step in range(WARMUP + steps):
        if step == WARMUP:
            began = time.perf_counter()
        take_step(run, batches[step % 2], step, progress)
    spent = time.perf_counter() - began
    if ranks.rank == 0:
        images = (1 + RATIO) * batch * ranks.world * steps
        print(json.dumps({"images_per_s": images / spent}), flush=True)
    group.leave()


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
