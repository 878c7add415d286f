"""Weak scaling: images per second of one process and of several, with one thread and batch each.

One torchrun starts the processes. In every round the first process trains alone while the others
wait, all train without communication (the limit of the machine itself), and all train together.
Gains are computed round by round: if the machine is slow for a while, all three are slowed alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastssl.errors import ResourceError
from fastssl.profiling.measure import Measured, make_record
from tools.bench.subjects import ScalingOptions

if TYPE_CHECKING:
    from fastssl.distributed.collectives import Ranks

ROOT = Path(__file__).resolve().parents[2]
ALONE, APART, TOGETHER = "alone", "apart", "together"
IMAGES = 5000  # unlabeled images of the dataset
WARMUP = 1  # rounds: DDP rebuilds its buckets in the first steps
PATIENCE = 300.0  # seconds beyond `options.seconds`, to start and to finish the last round
GRACE = 45.0  # seconds in which torchrun ends its processes; it kills them after 30

Rates = dict[str, list[float]]  # images per second of each case, one number per round


def run(options: ScalingOptions) -> dict[str, Any]:
    """Measure one process and several; return the record."""
    rates = launch(options)
    several = f"{options.processes} processes"
    names = {ALONE: "1 process", APART: f"{several} that never talk", TOGETHER: several}
    gain = {name: _gain(rates[name], rates[ALONE]) for name in (TOGETHER, APART)}
    results = [
        Measured(tuple(rates[name]), 0.0).row(label, "images/s", 2, rounds=len(rates[name]))
        for name, label in names.items()
    ]
    return make_record(
        "scaling",
        asdict(options),
        results,
        {"processes": round(gain[TOGETHER], 3), "apart": round(gain[APART], 3)},
        says=(
            f"{several} train on {gain[TOGETHER]:.2f} times the images of one; without "
            f"communication, which is the limit of this machine, on {gain[APART]:.2f} times."
        ),
    )


def _gain(several: list[float], one: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(several, one, strict=True))


def launch(options: ScalingOptions) -> Rates:
    """Start the processes and return what they measured."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc-per-node={options.processes}"]
    program = ["-m", "tools.bench.scaling", json.dumps(asdict(options))]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*torchrun, *program],
        cwd=ROOT,  # from where `tools` can be imported
        env={**os.environ, **threads},
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    try:
        out, errors = process.communicate(timeout=options.seconds + PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise ResourceError(
            f"scaling did not end within {options.seconds + PATIENCE:.0f} s",
            "use a smaller batch or fewer steps, or allow more time with --seconds 600",
        ) from error
    finally:
        _terminate(process)
    if process.returncode:
        raise ResourceError("torchrun failed", errors.strip()[-300:] or "no message")
    rates: Rates = json.loads(out.strip().splitlines()[-1])
    return rates


def _terminate(process: subprocess.Popen[str]) -> None:
    """End torchrun with SIGTERM, so that it ends its processes; they would survive SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()


def main(options: ScalingOptions) -> None:
    """Measure in one process of torchrun; rank 0 prints the rates."""
    import torch

    from fastssl.distributed.process_group import joined
    from fastssl.engine import devices

    torch.set_num_threads(1)
    devices.keep_memory()  # as in a training
    with joined() as group:
        # The learners hold DDP wrappers, which must be gone when the group is destroyed. They are
        # local variables of `measure` for that reason.
        rates = measure(options, group.ranks)
        if group.ranks.rank == 0:
            print(json.dumps(rates), flush=True)


def measure(options: ScalingOptions, ranks: Ranks) -> Rates:
    """Measure as one rank; return images per second of every case and round."""
    from fastssl.profiling.step_timing import time_steps
    from fastssl.profiling.synthetic import RATIO, make_batch, synthetic_learner

    began = time.monotonic()
    shape = options.batch, options.size, IMAGES
    bare = synthetic_learner(options.model, options.batch, IMAGES)
    wrapped = synthetic_learner(options.model, options.batch, IMAGES, ranks=ranks)
    single = bare, make_batch(*shape, ranks.rank)
    joint = wrapped, make_batch(*shape, 0, ranks=ranks)
    cases = {ALONE: single, APART: single, TOGETHER: joint}
    rates: Rates = {name: [] for name in cases}
    images = (1 + RATIO) * options.batch
    for turn in range(WARMUP + options.repetitions):
        # All ranks must agree to stop: the next collective would hang otherwise.
        late = ranks.max(int(time.monotonic() - began > options.seconds))
        if late and turn > WARMUP:
            break
        for name in list(cases)[:: -1 if turn % 2 else 1]:
            learner, batch = cases[name]
            works = name != ALONE or ranks.rank == 0
            ranks.max(0)  # a barrier: the other ranks wait without using a core
            seconds = time_steps(learner, [batch] * options.steps) if works else 0.0
            slowest = ranks.max(int(1e6 * seconds)) / 1e6
            if turn >= WARMUP:
                rates[name].append(images * (1 if name == ALONE else ranks.world) / slowest)
    return rates


if __name__ == "__main__":
    main(ScalingOptions(**json.loads(sys.argv[1])))
