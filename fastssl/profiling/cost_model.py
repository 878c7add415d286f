"""The cost model behind a plan: which part of a training step bounds it, and at what rate.

A step of one rank has four parts: reading and decoding, views, the step itself, and communication
between ranks. They overlap as far as they use different hardware; on a CPU the first three may
have to share the cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HIDDEN = 0.5  # share of a step, its backward pass, that overlaps with the gradients' all-reduce


@dataclass(frozen=True)
class Rates:
    """The rate of each part on one rank if it runs alone."""

    decode: float
    """Images read and decoded per second; 0: they are in memory."""
    views: float
    """Views made per second."""
    step: float
    """Images of both streams trained on per second."""
    link: float = 0.0
    """Bytes per second between ranks; 0: no cost."""


@dataclass(frozen=True)
class Load:
    """The work of one step over all ranks."""

    images: int
    """Images of both streams."""
    views: int
    """Views made of them."""
    bytes: int = 0
    """Bytes that one rank sends."""
    shared: bool = True
    """Whether views and decoding share the cores with the step."""


def predict(rates: Rates, load: Load, world: int = 1) -> dict[str, Any]:
    """Return the seconds of each part of a step, which of them bounds it, and images per second."""
    images, views = load.images / world, load.views / world
    seconds = {
        "decode": images / rates.decode if rates.decode else 0.0,
        "views": views / rates.views,
        "step": images / rates.step,
    }
    # A ring all-reduce sends 2 (n - 1) / n of the gradients. Only what the backward pass does not
    # hide adds to the step.
    link = 2 * (world - 1) / world * load.bytes / rates.link if rates.link and world > 1 else 0.0
    seconds["link"] = link - min(link, HIDDEN * seconds["step"])
    if load.shared:
        total = sum(seconds.values())
    else:
        total = max(seconds["decode"], seconds["views"], seconds["step"] + seconds["link"])
    return {
        "seconds": {name: round(value, 6) for name, value in seconds.items()},
        "step_seconds": round(total, 6),
        "images_per_s": round(load.images / total, 1),
        "bound": max(seconds, key=lambda name: seconds[name]),
    }


ADVICE = {
    "decode": "more loader_threads, nvJPEG, or smaller stored images help",
    "views": "more loader_threads help",
    "step": "more ranks help: the data keeps up",
    "link": "a faster link, larger batches, or fewer ranks help",
}


def summarize(plan: Mapping[str, Any], world: int) -> str:
    """Return a sentence that names the bottleneck."""
    bound = plan["bound"]
    share = plan["seconds"][bound] / plan["step_seconds"]
    ranks = f"{world} ranks" if world > 1 else "one rank"
    return (
        f"With {ranks} the run is bound by the {bound} ({share:.0%} of a step of "
        f"{1000 * plan['step_seconds']:.1f} ms) at {plan['images_per_s']:,.0f} images/s: "
        f"{ADVICE[bound]}."
    )
