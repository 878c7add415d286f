"""What can be profiled, and the options of each subject.

The command line and `fastssl.profile` are both built from these classes. This module imports
neither torch nor pydantic, so that `fastssl --help` stays fast.
"""
# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Annotated, Any, ClassVar, get_origin, get_type_hints

from annotated_types import Ge, Gt, MinLen

from fastssl.config.messages import describe
from fastssl.errors import ConfigError

Count = Annotated[int, Ge(1)]
Rate = Annotated[float, Gt(0)]


def option(default: Any, help: str) -> Any:
    """Declare an option with its default and its help text."""
    return field(default=default, metadata={"help": help})


def repetitions(default: int) -> Any:
    """Declare the option that all subjects share."""
    return option(default, "Counted rounds; one more round warms up.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a subject. Pydantic validates them according to their annotations."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, kw_only=True)
class ViewsOptions(Options):
    """Measure how fast views are made from pixels in memory."""

    size: Count = option(32, "Height and width of a view in pixels: 32, 96 or 224.")
    threads: Annotated[tuple[Count, ...], MinLen(1)] = option(
        (1, 2), "Numbers of threads to measure with."
    )
    batch: Count = option(448, "Images per batch.")
    repetitions: Count = repetitions(5)
    seconds: Annotated[float, Ge(0)] = option(1.0, "Shortest duration of one repetition.")
    device: str = option("cpu", "cpu or cuda; cuda also measures the kernel for devices.")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """Measure how fast arrays and photos are converted to a store."""

    arrays: Annotated[int, Ge(0)] = option(50_000, "Arrays of 32 pixels; 0 skips this part.")
    photos: Annotated[int, Ge(0)] = option(3_000, "Photos; 0 skips this part.")
    folder: str | None = option(None, "Your own photos; by default, some are generated.")
    workers: Count = option(2, "Worker processes.")
    repetitions: Count = repetitions(5)


@dataclass(frozen=True, kw_only=True)
class CplOptions(Options):
    """Measure one update of curriculum pseudo-labeling, compiled and eager."""

    images: Annotated[tuple[Count, ...], MinLen(1)] = option(
        (50_000, 1_281_167), "Numbers of unlabeled images; growth compares the extremes."
    )
    classes: Count = option(1000, "Number of classes.")
    batch: Count = option(128, "Unlabeled images per step.")
    repetitions: Count = repetitions(7)
    updates: Count = option(300, "Updates per repetition.")
    device: str = option("cpu", "cpu or cuda.")


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """Measure one training step of FlexMatch on synthetic views."""

    model: str = option("wrn-28-2", "Network.")
    batch: Count = option(8, "Labeled images per step; there are 7 times as many unlabeled ones.")
    size: Count = option(32, "Height and width of an image in pixels.")
    images: Count = option(50_000, "Number of unlabeled images in the dataset.")
    threads: Annotated[int, Ge(0)] = option(0, "Threads; 0: all cores.")
    steps: Count = option(1, "Steps per repetition.")
    repetitions: Count = repetitions(7)
    compiled: bool = option(False, "Also measure the compiled step; compiling takes minutes.")
    device: str = option("cpu", "cpu or cuda.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Measure training with every reader, relative to a constant batch that costs nothing."""

    config: str = option("cifar10", "Name of a shipped configuration, or a YAML file.")
    overrides: tuple[str, ...] = option((), "Settings as key=value.")
    readers: tuple[str, ...] = option(
        ("resident", "ffcv", "dali"), "Readers; those that are not installed are skipped."
    )
    steps: Count = option(2, "Steps per repetition.")
    repetitions: Count = repetitions(5)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Options):
    """Predict the rate of a run and what bounds it; rates that are not given are measured."""

    config: str = option("digits", "Name of a shipped configuration, or a YAML file.")
    overrides: tuple[str, ...] = option((), "Settings as key=value.")
    world: Count = option(1, "Ranks to plan for.")
    decode: Annotated[float, Ge(0)] | None = option(
        None, "Images decoded per second and rank; 0: they are in memory."
    )
    views: Rate | None = option(None, "Views made per second and rank.")
    step: Rate | None = option(None, "Images trained on per second and rank.")
    link: Annotated[float, Ge(0)] = option(0.0, "Bytes per second between ranks; 0: no cost.")
    steps: Annotated[int, Ge(2)] = option(12, "Steps per measurement, fewer if they are slow.")
    repetitions: Count = repetitions(9)
    seconds: Rate = option(90.0, "No round starts later, except the first counted one.")
    check: bool = option(True, "Compare the plan with measured training steps.")


SUBJECTS: dict[str, type[Options]] = {
    "views": ViewsOptions,
    "convert": ConvertOptions,
    "cpl": CplOptions,
    "step": StepOptions,
    "train": TrainOptions,
    "plan": PlanOptions,
}


def profile(subject: str, **options: Any) -> dict[str, Any]:
    """Measure a subject; return its record."""
    checked = parse_options(subject, options)
    record: dict[str, Any] = import_module(f"fastssl.profiling.{subject}").run(checked)
    return record


def parse_options(
    subject: str, given: Mapping[str, Any], subjects: Mapping[str, type[Options]] = SUBJECTS
) -> Options:
    """Return the validated options of a subject; raise ConfigError for the first mistake.

    Text is accepted for every option; that of a tuple is separated by commas.
    """
    from pydantic import TypeAdapter, ValidationError

    if subject not in subjects:
        raise ConfigError(
            f"there is nothing to profile named {subject!r}",
            f"use one of: {', '.join(subjects)}",
        )
    options = subjects[subject]
    names = [one.name for one in fields(options)]
    for name in given:
        if name not in names:
            raise ConfigError(
                f"profile {subject} has no option {name!r}", f"use one of: {', '.join(names)}"
            )
    tuples = {name for name, kind in get_type_hints(options).items() if get_origin(kind) is tuple}
    split = {name: given[name].split(",") for name in tuples if isinstance(given.get(name), str)}
    try:
        return TypeAdapter(options).validate_python({**given, **split})
    except ValidationError as error:
        problem = describe(error, names)[0].what
        fix = f"see `fastssl profile {subject} --help`"
        raise ConfigError(f"profile {subject}: {problem}", fix) from None
