"""Supervised: learn from the labelled images alone, the line that every other method must beat.

Cross-entropy on weak views, nothing else.
Loss: H(y, p(x)) over the labelled batch. There is no unlabelled stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import forward

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class SupervisedSettings(Settings):
    """Nothing to set."""


@algorithm("supervised", config=SupervisedSettings, forwards="1: labelled")
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: SupervisedSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """One step on labelled images."""
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    loss = F.cross_entropy(logits, batch.labels)
    return StepOutput(loss=loss, metrics={"loss/labeled": loss.detach()})
