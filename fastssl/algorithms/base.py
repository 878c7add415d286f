"""The contract of an algorithm: what it declares, what its step gets, what its step gives back.

An algorithm is one file with one step function. The loop does everything else: backward,
optimizer, moving average, logging, checkpoints. Nothing here imports torch, so that the names,
views and settings of all algorithms can be listed without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from pipelines.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fastssl.distributed.collectives import Ranks as Ranks
    from pipelines.loader.batch import Batch as Batch

State: TypeAlias = "dict[str, Tensor]"
"""What an algorithm remembers: updated in place, saved in the checkpoint as it is."""


class Settings(BaseModel):
    """Settings of one algorithm; the sentence under a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What an algorithm may know of the data before training."""

    num_classes: int
    num_unlabeled: int
    labeled_shares: Tensor  # [C] class frequencies of the labelled set, summing to 1
    device: torch.device | str


@dataclass(frozen=True, slots=True)
class Nets:
    """The two networks of a run."""

    student: nn.Module  # the one that is trained
    teacher: nn.Module  # its moving average; takes no gradient


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gives back."""

    loss: Tensor  # scalar with a graph; its mean over ranks is the loss of the global batch
    metrics: dict[str, Tensor]  # scalars on the device, detached; read at log steps
    tables: dict[str, Tensor] = field(default_factory=dict)  # small; read at evaluations
    pseudo_label: Tensor | None = None  # [U] pseudo-labels, for the loop to compare with the truth
    trusted: Tensor | None = None  # [U] weight in [0, 1] with which each guess is used


Step: TypeAlias = "Callable[[Nets, Batch, State, Any, Tensor, Ranks], StepOutput]"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm as the rest of the program sees it."""

    name: str
    summary: str  # first sentence of the file
    views: Mapping[str, str]  # name in the batch -> recipe of pipelines.views
    forwards: str  # forward passes of one step, in words
    config: type[Settings]
    step: Step
    init_state: Callable[[Any, DatasetInfo], State]
    ratio: int  # default number of unlabelled images for each labelled one
    labeled: Literal["split", "all"]  # the labelled split, or all training data as labelled
    heads: Mapping[str, int]  # extra linear heads on the pooled features: name -> outputs

    @property
    def unlabeled(self) -> bool:
        """Whether there is an unlabelled stream at all."""
        return bool(self.views)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")


def no_state(config: Any, info: DatasetInfo) -> State:
    """Remember nothing."""
    return {}


def algorithm(
    name: str,
    *,
    config: type[Settings],
    forwards: str,
    views: Mapping[str, str] | None = None,
    init_state: Callable[[Any, DatasetInfo], State] = no_state,
    ratio: int = 1,
    labeled: Literal["split", "all"] = "split",
    heads: Mapping[str, int] | None = None,
) -> Callable[[Step], Step]:
    """Register a step function as the algorithm `name`."""

    def register(step: Step) -> Step:
        text = " ".join((sys.modules[step.__module__].__doc__ or "").split("\n\n")[0].split())
        ALGORITHMS.add(
            name,
            Algorithm(
                name=name,
                summary=text,
                views=dict(views or {}),
                forwards=forwards,
                config=config,
                step=step,
                init_state=init_state,
                ratio=ratio,
                labeled=labeled,
                heads=dict(heads or {}),
            ),
        )
        return step

    return register
