"""What bounds a run, and at what rate: a model on paper, checked against a measured run.

A step of one rank is made by four parts that overlap as far as they use different things: reading
and decoding, views, the step itself, and the link between ranks; on a CPU the first three may have
to share the cores. Rates are measured here or given, as for a machine that is not at hand. How far
a plan is off is told by the median of what it is off in each round of the measurements, so that
whatever slows the machine for a while spoils one round and not the comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fastssl.errors import ConfigError
from fastssl.profiling.measure import Measured, environment

HIDDEN = 0.5  # share of a step, its backward pass, behind which gradients travel


@dataclass(frozen=True)
class Rates:
    """What one rank can do of each part if it does nothing else."""

    decode: float
    """Images read and decoded a second; 0: they lie in memory."""
    views: float
    """Views made a second."""
    step: float
    """Images of both streams learnt a second, on one device."""
    link: float = 0.0
    """Bytes a second between ranks; 0: no cost."""


@dataclass(frozen=True)
class Load:
    """What one step asks of all ranks together."""

    images: int
    """Images of both streams."""
    views: int
    """Views made of them."""
    bytes: int = 0
    """Bytes that one rank sends."""
    shared: bool = True
    """Views and decoding take their time from the step: on a CPU with fewer cores than threads."""


def predict(rates: Rates, load: Load, world: int = 1) -> dict[str, Any]:
    """Say how long each part of a step takes, which of them bounds it, and images a second."""
    images, views = load.images / world, load.views / world
    seconds = {
        "decode": images / rates.decode if rates.decode else 0.0,
        "views": views / rates.views,
        "step": images / rates.step,
    }
    link = 2 * (world - 1) / world * load.bytes / rates.link if rates.link and world > 1 else 0.0
    hidden = min(link, HIDDEN * seconds["step"])
    seconds["link"] = link - hidden  # what sticks out behind the backward pass
    if load.shared:
        total = sum(seconds.values())
    else:
        total = max(seconds["decode"], seconds["views"], seconds["step"] + seconds["link"])
    bound = max(seconds, key=lambda name: seconds[name])
    return {
        "seconds": {name: round(value, 6) for name, value in seconds.items()},
        "step_seconds": round(total, 6),
        "images_per_s": round(load.images / total, 1),
        "bound": bound,
    }


@dataclass(frozen=True)
class Options:
    """What can be asked of the plan; a rate that is given is not measured."""

    config: str = "digits"
    """A configuration, by name or path."""
    overrides: tuple[str, ...] = ()
    """`key=value` words."""
    world: int = 1
    """Ranks to plan for."""
    decode: float | None = None
    """Images decoded a second by one rank."""
    views: float | None = None
    """Views made a second by one rank."""
    step: float | None = None
    """Images learnt a second by one rank."""
    link: float = 0.0
    """Bytes a second between ranks."""
    steps: int = 12
    """Steps that each measurement takes, fewer where they are slow."""
    repetitions: int = 9
    """Counted rounds, in which all measurements take turns; one more warms up."""
    seconds: float = 90.0
    """No round begins later than this."""
    check: bool = True
    """Take real steps too, and say how far the plan is off."""


def run(config: str = "digits", overrides: Iterable[str] = (), **options: Any) -> dict[str, Any]:
    """Measure what is not given, plan, and compare the plan with real steps; return the record."""
    known = {field.name for field in fields(Options)}
    for name in options:
        if name not in known:
            raise ConfigError(f"plan has no option {name!r}", f"take: {', '.join(sorted(known))}")
    asked = Options(config, tuple(overrides), **options)
    if asked.world < 1 or asked.steps < 2:
        raise ConfigError(
            "a plan wants at least 1 rank and 2 steps", "type world=1 steps=12, or more"
        )
    from fastssl.profiling import plan_rates

    words, measured = list(asked.overrides), dict[str, Measured]()
    if on_paper(asked):
        load = plan_rates.load_on_paper(asked.config, words)
    else:
        with plan_rates.opened(asked.config, words) as base:
            load = plan_rates.load_of(base)
            measured = plan_rates.measure(base, asked)
    return _record(asked, load, measured)


def on_paper(asked: Options) -> bool:
    """Tell whether nothing is left to measure: then no data is needed either."""
    given = None not in (asked.decode, asked.views, asked.step)
    return given and (asked.world > 1 or not asked.check)


def _rates(asked: Options, found: Mapping[str, float]) -> Rates:
    """Take the rates that were given, and those that were found where none was."""
    given = {name: getattr(asked, name) for name in UNITS if getattr(asked, name) is not None}
    return Rates(**{**{name: found[name] for name in UNITS if name in found}, **given})


def _off(asked: Options, load: Load, measured: Mapping[str, Measured]) -> dict[str, float]:
    """Return the plan over real steps: the median over rounds, each planned by its own rates."""
    if "measured" not in measured:
        return {}
    rounds = zip(*(case.values for case in measured.values()), strict=True)
    found = [dict(zip(measured, values, strict=True)) for values in rounds]
    plans = [predict(_rates(asked, one), load)["images_per_s"] for one in found]
    shares = (plan / one["measured"] for plan, one in zip(plans, found, strict=True))
    return {"plan": round(statistics.median(shares), 3)}


def _record(asked: Options, load: Load, measured: Mapping[str, Measured]) -> dict[str, Any]:
    rates = _rates(asked, {name: case.median for name, case in measured.items()})
    plan = predict(rates, load, asked.world)
    values = {name: value for name, value in asdict(rates).items() if value}
    values["plan"] = plan["images_per_s"]
    if "measured" in measured:
        values["measured"] = measured["measured"].median
    return {
        "what": "plan",
        "environment": environment(),
        "settings": asdict(asked),
        "results": [
            {
                "name": name,
                "rate": round(value, 1),
                "unit": UNITS.get(name, "images/s"),
                "spread": round(measured[name].spread, 1) if name in measured else 0.0,
                "rounds": len(measured[name].values) if name in measured else 0,
            }
            for name, value in values.items()
        ],
        "ratio": _off(asked, load, measured),
        "load": asdict(load),
        "plan": plan,
        "says": says(plan, asked.world),
    }


UNITS = {"decode": "images/s", "views": "views/s", "step": "images/s", "link": "bytes/s"}
HELP = {
    "decode": "more loader_threads, nvJPEG, or smaller stored images help",
    "views": "more loader_threads help",
    "step": "more ranks help: the data keeps up",
    "link": "a faster link, larger batches, or fewer ranks help",
}


def says(plan: Mapping[str, Any], world: int) -> str:
    """Return the sentence that names the bottleneck."""
    bound = plan["bound"]
    share = plan["seconds"][bound] / plan["step_seconds"]
    ranks = f"{world} ranks" if world > 1 else "one rank"
    return (
        f"With {ranks} the run is bound by the {bound} ({share:.0%} of a step of "
        f"{1000 * plan['step_seconds']:.1f} ms) at {plan['images_per_s']:,.0f} images/s: "
        f"{HELP[bound]}."
    )
