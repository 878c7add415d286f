"""Weak scaling: images a second of one process and of several, one thread and one batch each.

One torchrun starts the processes. In every round the first of them learns alone while the others
wait, all learn without a word to each other (what the machine itself can give), and all learn
together. Gains are taken round by round: whatever slows the machine for a while slows all three.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from fastssl.errors import ConfigError, ResourceError
from fastssl.profiling.measure import Measured, environment

if TYPE_CHECKING:
    from fastssl.distributed.collectives import Ranks

ALONE, APART, TOGETHER = "alone", "apart", "together"
IMAGES = 5000  # that a curriculum marks
WARMUP = 1  # rounds: DDP settles its buckets in the first steps
PATIENCE = 300.0  # seconds beyond those asked for, to start and to end the last round
GRACE = 45.0  # seconds in which torchrun ends its processes; after 30 it kills them

Rates = dict[str, list[float]]


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    processes: int = 2
    """Processes of the larger case."""
    model: str = "wrn-28-2"
    """Network."""
    batch: int = 8
    """Labelled images of one process."""
    size: int = 32
    """Pixels of a side."""
    steps: int = 1
    """Steps of one repetition."""
    repetitions: int = 15
    """Counted rounds; one more warms up."""
    seconds: float = 150.0
    """No round begins later than this; the first counted one always does."""


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
            "type processes=2 steps=1 repetitions=15",
        )
    return _record(asked, launch(asked))


def _record(asked: Options, rates: Rates) -> dict[str, Any]:
    several = f"{asked.processes} processes"
    names = {ALONE: "1 process", APART: f"{several} that never talk", TOGETHER: several}
    gain = {name: _gain(rates[name], rates[ALONE]) for name in (TOGETHER, APART)}
    measured = {name: Measured(tuple(rates[name]), 0.0) for name in names}
    return {
        "what": "scaling",
        "environment": environment(),
        "settings": asdict(asked),
        "results": [
            {
                "name": names[name],
                "rate": round(case.median, 2),
                "unit": "images/s",
                "spread": round(case.spread, 2),
                "rounds": len(case.values),
            }
            for name, case in measured.items()
        ],
        "ratio": {"processes": round(gain[TOGETHER], 3), "apart": round(gain[APART], 3)},
        "says": (
            f"{several} learn {gain[TOGETHER]:.2f} times the images of one; without a word to "
            f"each other, as far as this machine goes, they learn {gain[APART]:.2f} times."
        ),
    }


def _gain(several: list[float], one: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(several, one, strict=True))


def launch(asked: Options) -> Rates:
    """Start the processes; return images a second of every case, a number a round."""
    words = json.dumps(asdict(asked))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [f"--nproc-per-node={asked.processes}", "-m", "fastssl.profiling.scaling", words]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*torchrun, *program], env={**os.environ, **threads}, stdout=pipe, stderr=pipe, text=True
    )
    try:
        out, told = process.communicate(timeout=asked.seconds + PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise ResourceError(
            f"scaling did not end within {asked.seconds + PATIENCE:.0f} s",
            "take a smaller batch or fewer steps, or give it more by seconds=600",
        ) from error
    finally:
        _end(process)
    if process.returncode:
        raise ResourceError("torchrun failed", told.strip()[-300:] or "no message")
    found: Rates = json.loads(out.strip().splitlines()[-1])
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End torchrun so that it takes its processes along: they would outlive it if it was killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()


def main(asked: Options) -> None:
    """Measure in one process of torchrun; rank 0 prints."""
    import torch

    from fastssl.distributed.process_group import joined
    from fastssl.engine import host_memory

    torch.set_num_threads(1)
    host_memory.keep()  # as in a training
    with joined() as group:
        # The runs must be gone when the group is left, so they are built in a function.
        rates = measure(asked, group.ranks)
        if group.ranks.rank == 0:
            print(json.dumps(rates), flush=True)


def measure(asked: Options, ranks: Ranks) -> Rates:
    """Measure as one rank; return images a second of every case, a number a round."""
    import torch

    from fastssl.engine.loop import train_step
    from fastssl.profiling.parts import RATIO, make_batch, make_run

    began = time.monotonic()
    progress = torch.zeros(())
    shape = asked.batch, asked.size, IMAGES
    silent, own = make_run(asked.model, *shape), make_batch(*shape, ranks.rank)
    talking = make_run(asked.model, *shape, ranks=ranks), make_batch(*shape, 0, ranks=ranks)
    cases = {ALONE: (silent, own), APART: (silent, own), TOGETHER: talking}
    rates: Rates = {name: [] for name in cases}
    for turn in range(WARMUP + asked.repetitions):
        late = ranks.max(int(time.monotonic() - began > asked.seconds))
        if late and turn > WARMUP:
            break
        for name in list(cases)[:: -1 if turn % 2 else 1]:
            run, images = cases[name]
            works = name != ALONE or ranks.rank == 0
            ranks.max(0)  # the others wait, at no cost, while the first is alone
            started = time.perf_counter()
            for step in range(asked.steps if works else 0):
                train_step(run, images, step, progress)
            spent = ranks.max(int(1e6 * (time.perf_counter() - started))) / 1e6
            if turn >= WARMUP:
                learnt = (1 + RATIO) * asked.batch * asked.steps
                rates[name].append(learnt * (1 if name == ALONE else ranks.world) / spent)
    return rates


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
