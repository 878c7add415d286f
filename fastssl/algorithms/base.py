"""The contract of an algorithm: what it declares, what its step function gets and returns.

An algorithm is one file with one step function. The loop does everything else: backward,
optimizer, moving average, logging, checkpoints. Nothing here imports torch, so that the names,
views and settings of all algorithms can be listed without it; for the same reason the step
functions import torch inside their bodies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from fastssl.distributed.collectives import Ranks as Ranks
from fastssl.plugins import USER_FILE
from pipelines.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor as Tensor
    from torch import nn as nn

    from pipelines.loader.batch import Batch as Batch
else:
    # Algorithms import these names for their annotations, which nothing evaluates.
    Batch = Tensor = nn = Any

State: TypeAlias = "dict[str, Tensor]"
"""Tensors that an algorithm keeps between steps: updated in place, saved in the checkpoint."""


class Settings(BaseModel):
    """Settings of one algorithm; the docstring below a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What an algorithm may know about the data before training."""

    num_classes: int
    num_unlabeled: int
    # [C] class frequencies of the labeled set, summing to 1. Floating-point state takes its type
    # and device from it, so that a run in double precision has no part in single precision.
    labeled_shares: Tensor
    device: torch.device | str


@dataclass(frozen=True, slots=True)
class Nets:
    """The two networks of a run."""

    student: nn.Module  # trained; inside DDP where there are several ranks
    teacher: nn.Module  # moving average of the student (EMA); gets no gradient


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step function returns."""

    loss: Tensor  # scalar with a graph; its mean over ranks is the loss of the global batch
    metrics: dict[str, Tensor]  # detached scalars, left on the device; read at log steps
    tables: dict[str, Tensor] = field(default_factory=dict)  # small tensors; read at evaluations
    pseudo_label: Tensor | None = None  # [U] compared with the true labels by the loop
    trusted: Tensor | None = None  # [U] weight in [0, 1] of each pseudo-label in the loss


Step: TypeAlias = "Callable[[Nets, Batch, State, Any, Tensor, Ranks], StepOutput]"
"""step(nets, batch, state, settings, progress, ranks); `progress` is the share of training done."""

Thresholds: TypeAlias = "Callable[[State, Any, int], Tensor]"
"""thresholds(state, settings, num_classes): the current confidence threshold of each class [C]."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm as the rest of the program sees it."""

    name: str
    summary: str  # first sentence of the file
    views: Mapping[str, str]  # name in the batch -> recipe of pipelines.views
    forwards: str  # passes of one step for `fastssl list`; begins with their number
    config: type[Settings]
    step: Step
    init_state: Callable[[Any, DatasetInfo], State]
    ratio: int  # default number of unlabeled images per labeled image
    labeled: Literal["split", "all"]  # the labeled split, or all training data with their labels
    heads: Mapping[str, int]  # extra linear heads on the pooled features: name -> outputs
    thresholds: Thresholds | None  # None: the algorithm has no threshold

    @property
    def unlabeled(self) -> bool:
        """Whether the algorithm uses unlabeled images."""
        return bool(self.views)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
DECLARED: list[Algorithm] = []  # also those of users' files that were replaced by later ones


def fixed_thresholds(state: State, config: Any, num_classes: int) -> Tensor:
    """Return the setting `threshold` for each class."""
    import torch

    return torch.full((num_classes,), float(config.threshold), dtype=torch.float64)


def no_state(config: Any, info: DatasetInfo) -> State:
    """Return an empty state."""
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
    thresholds: Thresholds | None = None,
) -> Callable[[Step], Step]:
    """Register a step function as the algorithm `name`.

    Without `thresholds`, an algorithm that has a setting `threshold` uses it for every class.
    """
    if thresholds is None and "threshold" in config.model_fields:
        thresholds = fixed_thresholds

    def register(step: Step) -> Step:
        text = " ".join((sys.modules[step.__module__].__doc__ or "").split("\n\n")[0].split())
        made = Algorithm(
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
            thresholds=thresholds,
        )
        # A user's file is loaded again once it was edited or corrected, and a run has a copy of it.
        # The later one gets the name. Our own names are not given away.
        own = name in ALGORITHMS and not ALGORITHMS[name].step.__module__.startswith(USER_FILE)
        ALGORITHMS.add(name, made, replace=not own)
        DECLARED.append(made)
        return step

    return register
