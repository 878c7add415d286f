"""How many training steps fit into the minutes that are left: measured, not assumed.

The learning rate falls over the number of steps that are run, so the number is chosen before the
training begins and does not change after that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from fastssl.automation.request import MINUTES, Request, typed
from fastssl.automation.request import settings as as_typed
from fastssl.config.resolve import ResolvedConfig, load
from fastssl.distributed import process_group
from fastssl.engine import dry_run, step_memory
from fastssl.tracking.console import clock
from pipelines.memory import free_memory
from pipelines.store.store import Store

logger = logging.getLogger(__name__)
# Fewer steps are not worth their time: from two labels a class of ten kinds of photographs, 60
# steps made the model of the probe worse by 2.0 % of the test images, and 250 better by 1.3 %.
FEWEST = 200
ENOUGH = 400  # steps from which a larger batch is worth more than further steps
SAVE_EVERY, LOG_EVERY = 60.0, 15.0  # seconds
WARMUP = 10  # a tenth of the steps, or the warm-up of the configuration if that is shorter


@dataclass(frozen=True)
class Cost:
    """What a step of a training costs on this machine."""

    image: float  # seconds of an image in one view, forward and backward
    startup: float  # seconds before the first step
    memory: int  # bytes that an image takes; 0 if the device has a memory of its own


def configuration(request: Request) -> tuple[str, dict[str, Any]]:
    """Return the configuration of the fine-tuning and its settings, without those of the budget.

    Compiled steps would take another time than those that are measured.

    A network without pretrained weights is trained from the beginning: its probe has learned
    nothing that could be fine-tuned.
    """
    given = {key: value for key, value in request.overrides.items() if key != "pretrained"}
    settings: dict[str, Any] = {"compile": "off", "store": str(request.store), **given}
    if not request.network.config.pretrained:
        return "own", {"model": request.network.config.model, **settings}
    # The classifier of the probe, which is better than means of features: after 60 steps from two
    # labels a class of ten kinds of photographs, it had 86.7 % right, and class means 78.7 %.
    head = {} if "head_init" in given else {"head_init": "default", "temperature": 1}
    return "own_pretrained", {**head, **settings, "pretrained": str(request.probe)}


def measure(resolved: ResolvedConfig) -> Cost:
    """Train a few steps and return what they cost; nothing is written."""
    with process_group.joined() as group:
        found = dry_run.measure(resolved, group)
    learner, seconds = found.learner, found.seconds
    on_cpu = learner.device.device.type == "cpu"
    memory = step_memory.per_image(learner, found.data.size) if on_cpu else 0
    return Cost(seconds / step_memory.images(learner), found.startup, memory)


def sizes(resolved: ResolvedConfig, given: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the batches and ratios to choose from, the largest first, without what was given."""
    config = resolved.config
    ratios = [config.ratio or resolved.algorithm.ratio]
    while ratios[-1] > 1 and "ratio" not in given:
        ratios.append(ratios[-1] // 2)
    found = [(config.batch, ratio) for ratio in ratios]
    if "batch" not in given and config.batch % 2 == 0:
        found.append((config.batch // 2, ratios[-1]))
    return found


def plan(request: Request, store: Store, spent: float) -> dict[str, Any]:
    """Return the settings (`state.CHOICES`) that fit into the time; {"why": ...} if none do."""
    if spent >= 60 * request.minutes:
        return {"why": f"the {request.minutes:g} minutes are over; --minutes {MINUTES:g} allows it"}
    name, settings = configuration(request)
    consent = request.trust_code
    resolved = load(name, settings, trust_code=consent)
    choices = sizes(resolved, request.overrides)
    least = {"batch": choices[-1][0], "ratio": choices[-1][1]}
    small = {**settings, **least}
    logger.info(f"  measured by: {typed('train', name, *as_typed(small), '--dry-run')}")
    cost = measure(load(name, small, trust_code=consent))
    views = len(resolved.algorithm.views)
    tested = store.splits["test"].count if "test" in store.splits else 0
    # An evaluation takes a third of the time of a step with as many images, and there are three.
    left = 60 * request.minutes - spent - cost.startup - tested * cost.image
    free = free_memory()
    for batch, ratio in choices:
        images = batch * (1 + views * ratio)
        steps = min(int(left / (images * cost.image)), resolved.config.steps)
        if steps >= ENOUGH and images * cost.memory <= free:
            break
    step = images * cost.image
    if steps < FEWEST:
        needed = 60 * request.minutes - left + FEWEST * step
        return {"why": too_short(request, max(steps, 0), step, needed)}
    return {"batch": batch, "ratio": ratio, **paced(resolved, request, steps, step)}


def too_short(request: Request, steps: int, step: float, needed: float) -> str:
    """Return why there is no fine-tuning, and what to type."""
    minutes = -(-needed // 60)  # rounded up
    return (
        f"{steps:,} steps of {step:.1f} s fit into the {request.minutes:g} minutes, and fewer than "
        f"{FEWEST} are not worth their time; type the same command with --minutes {minutes:.0f}"
    )


def paced(resolved: ResolvedConfig, request: Request, steps: int, seconds: float) -> dict[str, int]:
    """Return the settings that follow from the number and time of steps, but for those given.

    The model is evaluated once, at the end: no checkpoint is then chosen by the test images.
    """
    logger.info(f"  {steps:,} steps of {seconds:.2f} s fit: about {clock(steps * seconds)}")
    found = {
        "steps": steps,
        "warmup": min(resolved.config.warmup, steps // WARMUP),
        "eval_every": steps,
        "eval_every_late": steps,
        "checkpoint_every": min(max(round(SAVE_EVERY / seconds), 1), steps),
        "log_every": min(max(round(LOG_EVERY / seconds), 1), steps),
    }
    return {key: value for key, value in found.items() if key not in request.overrides}
