"""The time of one training step of FlexMatch on random images that stand for views.

Forward, backward, optimizer, EMA and curriculum are measured; the data pipeline is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import cycle, islice
from typing import Any

import torch

from fastssl.engine import devices
from fastssl.profiling.measure import Case, Measured, interleave, make_record
from fastssl.profiling.step_timing import time_steps
from fastssl.profiling.subjects import StepOptions
from fastssl.profiling.synthetic import RATIO, make_batch, synthetic_learner


def run(options: StepOptions) -> dict[str, Any]:
    """Measure our step; return the record."""
    prepare(options)
    return record(options, interleave(cases(options), options.repetitions))


def prepare(options: StepOptions) -> None:
    """Apply the process settings of a training."""
    if options.threads:
        torch.set_num_threads(options.threads)
    devices.keep_memory()


def cases(options: StepOptions) -> dict[str, Case]:
    """Return the cases; each returns seconds per step."""
    made = {
        "fastssl": case(options),
        "fastssl, forward=split": case(options, forward="split"),
    }
    if options.device == "cpu":
        made["fastssl, precision=bf16"] = case(options, precision="bf16")
    if options.compiled:
        made["fastssl, compiled"] = case(options, compiled=True)
    return made


def case(
    options: StepOptions, *, forward: str = "together", compiled: bool = False, precision: str = ""
) -> Case:
    """Return a case that runs some steps and returns seconds per step."""
    shape = options.batch, options.size, options.images
    learner = synthetic_learner(
        options.model, options.batch, options.images, forward=forward, device=options.device
    )
    if precision:
        learner.device = replace(learner.device, precision=precision)
    if compiled:
        from fastssl.engine.compilation import Compiled

        learner.step = Compiled(learner.algorithm.step, "step", 1)
    batches = cycle([make_batch(*shape, seed, options.device) for seed in range(4)])
    return lambda: time_steps(learner, islice(batches, options.steps))


def record(options: StepOptions, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the record; the values of the cases are seconds."""
    images = (1 + RATIO) * options.batch
    ours = measured["fastssl"].median
    ratio = {
        name.rpartition("=")[2].removeprefix("fastssl, "): round(ours / case.median, 3)
        for name, case in measured.items()
        if name.startswith("fastssl, ")
    }
    results = [
        {
            "name": name,
            "rate": round(images / case.median, 2),
            "unit": "images/s",
            "ms": round(1000 * case.median, 2),
            "spread": round(1000 * case.spread, 2),
            "busy": round(case.busy, 2),
        }
        for name, case in measured.items()
    ]
    return make_record("step", asdict(options), results, ratio)
