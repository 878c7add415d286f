"""Weak scaling: images a second of one process and of several, one thread and one batch each.

Several processes are started by one torchrun. Round after round the first of them learns alone
while the others wait, then all learn together: whatever slows the machine slows both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fastssl.errors import ConfigError, ResourceError
from fastssl.profiling.measure import Measured, environment

WARMUP = 1  # rounds: DDP settles its buckets in the first steps


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    processes: int = 2
    """Processes of the larger case."""
    model: str = "wrn-28-2"
    """Network."""
    batch: int = 16
    """Labelled images of one process."""
    size: int = 32
    """Pixels of a side."""
    steps: int = 2
    """Steps of one repetition."""
    repetitions: int = 7
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
    if asked.processes < 2 or min(asked.steps, asked.repetitions) < 1:
        raise ConfigError(
            "scaling wants 2 processes, 1 step and 1 round at least",
            "type processes=2 steps=2 repetitions=7",
        )
    one, many = (Measured(tuple(values), 0.0) for values in launch(asked))
    gain = many.median / one.median
    rows = {"1 process": one, f"{asked.processes} processes": many}
    return {
        "what": "scaling",
        "environment": environment(),
        "settings": asdict(asked),
        "results": [
            {
                "name": name,
                "rate": round(case.median, 2),
                "unit": "images/s",
                "spread": round(case.spread, 2),
            }
            for name, case in rows.items()
        ],
        "ratio": {"processes": round(gain, 3)},
        "says": (
            f"{asked.processes} processes learn {gain:.2f} times the images of one: "
            f"{gain / asked.processes:.0%} of what they could."
        ),
    }


def launch(asked: Options) -> tuple[list[float], list[float]]:
    """Start the processes; return images a second of one and of all, a number a round."""
    words = [str(value) for value in asdict(asked).values()][1:]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [f"--nproc-per-node={asked.processes}", "-m", "fastssl.profiling.scaling", *words]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, *program], env={**os.environ, **threads}, capture_output=True, text=True
    )
    if done.returncode:
        raise ResourceError("torchrun failed", done.stderr.strip()[-300:] or "no message")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["one"], found["all"]


def main(model: str, batch: int, size: int, steps: int, repetitions: int) -> None:
    """Measure in one process of torchrun; rank 0 prints."""
    import torch

    from fastssl.distribute import join
    from fastssl.profiling.parts import RATIO, make_batch, make_run
    from fastssl.ranks import SingleRank
    from fastssl.training import take_step

    torch.set_num_threads(1)
    group = join()
    rates: dict[str, list[float]] = {"one": [], "all": []}
    cases = {}
    for name, ranks in (("one", SingleRank()), ("all", group.ranks)):
        run = make_run(model, batch, size, 5000, ranks=ranks)
        cases[name] = run, make_batch(batch, size, 5000, 0, ranks=ranks)
    progress = torch.zeros(())
    for repetition in range(WARMUP + repetitions):
        for name, (run, images) in cases.items():
            group.ranks.loudest(0)  # the others wait here, at no cost, while the first is alone
            if name == "one" and group.ranks.rank:
                continue
            began = time.perf_counter()
            for step in range(steps):
                take_step(run, images, step, progress)
            spent = time.perf_counter() - began
            if repetition >= WARMUP:
                rates[name].append((1 + RATIO) * batch * run.ranks.world * steps / spent)
    if group.ranks.rank == 0:
        print(json.dumps(rates), flush=True)
    group.leave()


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
