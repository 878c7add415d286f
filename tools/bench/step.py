"""Our training step against the same step written as public code writes it.

Both start from the same weights and get the same batches. Their losses are compared in double
precision before anything is timed. The reference runs in its own process, with the C library's
default memory settings. The collectives of a step over several ranks are counted, too.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch

from fastssl.engine.loop import train_step
from fastssl.profiling import step
from fastssl.profiling.measure import Case, interleave
from fastssl.profiling.synthetic import CLASSES, make_batch, synthetic_learner, to_double
from pipelines.loader.batch import Batch
from tools.bench import collectives
from tools.bench.operators import Profile, gflops, profile_operators, summarize
from tools.bench.process import CaseProcess
from tools.bench.reference_step import Reference
from tools.bench.subjects import StepOptions

TOLERANCE = 1e-6  # largest relative difference of the losses in double precision
CHECKED = 2  # steps


def run(options: StepOptions) -> dict[str, Any]:
    """Measure both; return the record. On a GPU only our step is measured."""
    record = run_both(options) if options.device == "cpu" else step.run(options)
    sent = collectives.count(options.model, options.batch, options.size, options.ranks)
    says = (
        f"Over {options.ranks} ranks a step makes {sent['calls']} collectives of "
        f"{sent['bytes']:,} bytes in all."
    )
    says = f"{record['says']} {says}" if "says" in record else says
    return {**record, "collectives": sent, "says": says}


def run_both(options: StepOptions) -> dict[str, Any]:
    """Measure our step and the reference; return the record."""
    step.prepare(options)
    difference = compare(options)
    cases = step.cases(options)
    with CaseProcess(reference_case, options) as reference:
        measured = interleave({**cases, "reference": reference}, options.repetitions)
    profiles = {"fastssl": profile_operators(cases["fastssl"])}
    with CaseProcess(reference_profile, options) as profiled:
        profiles["reference"] = profiled()
    rates = gflops(cases["fastssl"], profiles)
    record = step.record(options, measured)
    ratio = measured["reference"].median / measured["fastssl"].median
    record["ratio"] = {"reference": round(ratio, 3), **record["ratio"]}
    says = summarize(profiles, rates)
    return {**record, "losses_apart": difference, "time": profiles, "gflops": rates, "says": says}


def compare(options: StepOptions) -> float:
    """Run both steps in double precision; return the largest relative difference of the losses."""
    shape = options.batch, options.size, options.images
    learner = synthetic_learner(options.model, options.batch, options.images, double=True)
    reference = make_reference(options, learner)
    difference = 0.0
    for number in range(CHECKED):
        batch = to_double(make_batch(*shape, number))
        ours = float(train_step(learner, batch, number).loss.detach())
        theirs = float(reference.step(batch))
        difference = max(difference, abs(ours - theirs) / abs(theirs))
    if not difference <= TOLERANCE:
        raise AssertionError(f"the two steps differ: {difference:.2g} of the loss")
    return difference


def make_reference(options: StepOptions, learner: Any) -> Reference:
    """Return the reference with a copy of a learner's weights."""
    threshold = learner.resolved.settings.threshold
    return Reference(copy.deepcopy(learner.model), options.images, CLASSES, threshold)


def reference_case(options: StepOptions) -> Case:
    """Return a case that runs steps of the reference and returns seconds per step."""
    if options.threads:
        torch.set_num_threads(options.threads)
    shape = options.batch, options.size, options.images
    learner = synthetic_learner(options.model, options.batch, options.images)
    reference = make_reference(options, learner)
    batches = cycle([contiguous(make_batch(*shape, seed)) for seed in range(4)])

    def case() -> float:
        started = time.perf_counter()
        for _ in range(options.steps):
            reference.step(next(batches))
        return (time.perf_counter() - started) / options.steps

    return case


def contiguous(batch: Batch) -> Batch:
    """Return a batch in NCHW memory format, as a DataLoader delivers it."""
    views = {name: view.contiguous() for name, view in batch.views.items()}
    return replace(batch, images=batch.images.contiguous(), views=views)


def reference_profile(options: StepOptions) -> Callable[[], Profile]:
    """Return a case that profiles the reference."""
    return lambda: profile_operators(reference_case(options))
