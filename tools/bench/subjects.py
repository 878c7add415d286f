"""What `tools/profile_throughput.py` measures: the subjects of `fastssl profile`, and four more.

Three of them need a folder of photos or several processes; `skip` compares settings.
"""
# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

from fastssl.errors import ConfigError
from fastssl.profiling import subjects
from fastssl.profiling.subjects import Count, Options, Rate, option, repetitions


@dataclass(frozen=True, kw_only=True)
class StepOptions(subjects.StepOptions):
    """Measure one training step of FlexMatch, and count its collectives."""

    ranks: Count = option(2, "Ranks for which collectives are counted.")


@dataclass(frozen=True, kw_only=True)
class FolderOptions(Options):
    """The options of a subject that needs photos."""

    folder: str = option("", "Folder of photos; for predict, one sub-folder per class.")

    def __post_init__(self) -> None:
        """Refuse to measure without a folder."""
        if not self.folder:
            raise ConfigError("no folder of photos is given", "add --folder FOLDER")


@dataclass(frozen=True, kw_only=True)
class PhotosOptions(FolderOptions):
    """Measure the way from JPEG files in a store to views of 224 pixels, for every reader."""

    threads: Count = option(2, "Threads of the readers and of the view kernel.")
    batch: Count = option(64, "Images per batch.")
    batches: Count = option(32, "Batches per repetition.")
    repetitions: Count = repetitions(5)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(FolderOptions):
    """Measure how fast `predict` classifies image files."""

    images: Count = option(1_000, "Files to predict; those of the folder are repeated.")
    size: Count = option(32, "Height and width of the model's input in pixels.")
    model: str = option("wrn-28-2", "Network.")
    steps: Count = option(20, "Training steps before the measurement.")
    repetitions: Count = repetitions(5)


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Measure the gain of several processes over one, with the same batch per process."""

    processes: Annotated[int, Ge(2)] = option(2, "Processes of the larger case.")
    model: str = option("wrn-28-2", "Network.")
    batch: Count = option(8, "Labeled images per step and process.")
    size: Count = option(32, "Height and width of an image in pixels.")
    steps: Count = option(1, "Steps per repetition.")
    repetitions: Count = repetitions(15)
    seconds: Rate = option(150.0, "No round starts later, except the first counted one.")


@dataclass(frozen=True, kw_only=True)
class SkipOptions(Options):
    """Measure a training step of FlexMatch for each value of `algo.forward`, on a CPU."""

    config: str = option("fast/cifar10", "Name of a shipped configuration, or a YAML file.")
    overrides: tuple[str, ...] = option((), "Settings as key=value.")
    shares: Annotated[tuple[Annotated[int, Gt(0), Le(100)], ...], MinLen(1)] = option(
        (20, 50, 90), "Percent of the unlabeled images of a batch that are trusted."
    )
    size: Count = option(32, "Height and width of an image in pixels.")
    steps: Count = option(2, "Steps per repetition.")
    repetitions: Count = repetitions(9)


SUBJECTS: dict[str, type[Options]] = {
    **subjects.SUBJECTS,
    "step": StepOptions,
    "photos": PhotosOptions,
    "predict": PredictOptions,
    "scaling": ScalingOptions,
    "skip": SkipOptions,
}
