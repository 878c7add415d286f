"""What bounds a run, and at what rate: the cost model with measured or given rates.

Rates can be given for a machine that is not at hand. Everything that is measured is measured in
one process, with the threads of a run. The plan is compared with real training steps round by
round, so that a slow moment of the machine affects one round and not the comparison.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import repeat
from typing import Any

import numpy as np
import torch

from fastssl import models
from fastssl.config.resolve import load as load_config
from fastssl.config.schema import RunConfig
from fastssl.engine import devices
from fastssl.engine.build import Run
from fastssl.engine.build_data import find_store
from fastssl.profiling.cost_model import Load, Rates, predict, summarize
from fastssl.profiling.measure import Case, Measured, interleave, make_record, rate
from fastssl.profiling.step_timing import open_run, time_steps
from fastssl.profiling.subjects import PlanOptions
from fastssl.profiling.views import DeviceViewMaker, ViewMaker, Work
from pipelines.cpus import available_cpus
from pipelines.datasets import DATASETS

UNITS = {"decode": "images/s", "views": "views/s", "step": "images/s", "link": "bytes/s"}
WARMUP = 2  # steps: the first batches are made before any step competes for the cores
LIMIT = 6.0  # seconds after which one measurement starts no further step


def run(options: PlanOptions) -> dict[str, Any]:
    """Measure the rates that are not given, plan, and compare with real steps; return the record.

    If all rates are given and nothing is compared, the dataset is not needed.
    """
    load = configured_load(options.config, options.overrides)
    needed = [name for name in ("decode", "views", "step") if getattr(options, name) is None]
    if options.check and options.world == 1:
        needed.append("measured")
    measured: dict[str, Measured] = {}
    if needed:
        with open_run(options.config, options.overrides) as base:
            made = rate_cases(base, options.steps, load.images)
            cases = {name: made[name] for name in needed}
            measured = interleave(cases, options.repetitions, limit=options.seconds)
    return record(options, load, measured)


def configured_load(config: str, overrides: Sequence[str]) -> Load:
    """Return the work of one step of a configuration, without opening a standard dataset."""
    resolved = load_config(config, list(overrides))
    chosen, algorithm = resolved.config, resolved.algorithm
    standard = chosen.data in DATASETS and not chosen.store
    classes = DATASETS[chosen.data].classes if standard else find_store(resolved).classes
    model = models.build(chosen.model, classes, chosen.variant, algorithm.heads)
    unlabeled = chosen.batch * (chosen.ratio or algorithm.ratio) if algorithm.unlabeled else 0
    # device=cuda is taken literally: the GPU may be that of another machine.
    device = "cuda" if chosen.device == "auto" and torch.cuda.is_available() else chosen.device
    return Load(
        images=chosen.batch + unlabeled,
        views=chosen.batch + unlabeled * len(algorithm.views),
        bytes=sum(p.numel() * 4 for p in model.parameters() if p.requires_grad),  # float32
        shared=not device.startswith("cuda") and cores_are_shared(chosen),
    )


def cores_are_shared(config: RunConfig) -> bool:
    """Return whether model and loader together have more threads than there are cores."""
    return sum(devices.choose_threads(config)) > available_cpus()


def rate_cases(base: Run, steps: int, images: int) -> dict[str, Case]:
    """Return a case for every rate, and one for real steps of `images` to compare with."""
    indices = np.random.default_rng(0).integers(0, base.data.store.splits["train"].count, images)
    loader = base.data.loader
    constant = copy.deepcopy(loader.batch(0))  # a copy, because the loader reuses its buffers
    views = _view_maker(base, indices)

    def decode() -> int:
        return sum(len(batch) for batch in loader.reader.stream(repeat(indices, steps)))

    def train_on_constant() -> float:
        batches = repeat(constant, WARMUP + steps)
        return images / time_steps(base.learner, batches, warmup=WARMUP, limit=LIMIT)

    def train() -> float:
        batches: Any = loader.iterate(0, WARMUP + steps)
        with closing(batches):  # a generator, which the limit may leave early
            return images / time_steps(base.learner, batches, warmup=WARMUP, limit=LIMIT)

    return {
        "decode": lambda: rate(decode),
        "views": lambda: rate(lambda: sum(views.epoch() for _ in range(steps))),
        "step": train_on_constant,
        "measured": train,
    }


def _view_maker(base: Run, indices: Any) -> ViewMaker:
    """Return a maker of the run's views of some of its images."""
    loader = base.data.loader
    (pixels,) = (torch.as_tensor(one).cpu().numpy() for one in loader.reader.stream([indices]))
    recipes = list(loader.views.values()) or [loader.labeled_view]
    work = Work(pixels.copy(), base.data.size[0], len(pixels), 0, loader.mean, loader.std)
    if base.learner.device.device.type == "cuda":
        return DeviceViewMaker(work, str(base.learner.device.device), recipes)
    return ViewMaker(work, loader.threads, recipes)


def _rates(options: PlanOptions, measured: Mapping[str, float]) -> Rates:
    """Return the given rates, and the measured ones where none is given."""
    given = {name: getattr(options, name) for name in UNITS}
    given = {name: value for name, value in given.items() if value is not None}
    return Rates(**{**{name: measured[name] for name in UNITS if name in measured}, **given})


def compare(options: PlanOptions, load: Load, measured: Mapping[str, Measured]) -> dict[str, float]:
    """Return planned over measured rate: the median over rounds, each with its own rates."""
    if "measured" not in measured:
        return {}
    shares = []
    for values in zip(*(case.values for case in measured.values()), strict=True):
        one = dict(zip(measured, values, strict=True))
        shares.append(predict(_rates(options, one), load)["images_per_s"] / one["measured"])
    return {"plan": round(statistics.median(shares), 3)}


def record(options: PlanOptions, load: Load, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the record: the rates, the plan and its comparison with real steps."""
    rates = _rates(options, {name: case.median for name, case in measured.items()})
    plan = predict(rates, load, options.world)
    shown = {name: value for name, value in asdict(rates).items() if value}
    shown["plan"] = plan["images_per_s"]
    if "measured" in measured:
        shown["measured"] = measured["measured"].median
    results = []
    for name, value in shown.items():
        case = measured.get(name, Measured((value,), 0.0))
        rounds = len(case.values) if name in measured else 0  # 0: given or planned
        results.append(case.row(name, UNITS.get(name, "images/s"), rounds=rounds))
    return make_record(
        "plan",
        asdict(options),
        results,
        compare(options, load, measured),
        load=asdict(load),
        plan=plan,
        says=summarize(plan, options.world),
    )
