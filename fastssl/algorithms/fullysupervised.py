"""Fully supervised: learn from all training data with all its labels, the line to approach.

No method that is given fewer labels is expected to pass it.
Loss: H(y, p(x)). The labelled stream is the whole training set; there is no unlabelled one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastssl.algorithms import supervised
from fastssl.algorithms.base import Settings, StepOutput, algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class FullySupervisedSettings(Settings):
    """Nothing to set."""


@algorithm("fullysupervised", config=FullySupervisedSettings, forwards="1: labelled", labeled="all")
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: FullySupervisedSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """One step on labelled images, drawn from all training data."""
    return supervised.step(nets, batch, state, config, progress, ranks)
