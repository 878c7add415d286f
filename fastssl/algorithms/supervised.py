"""Supervised: learn from the labeled images alone: the baseline that every method must beat.

It shows what the labels alone are worth. Loss: H(y, p(x)) on weak views of the labeled batch.
There is no unlabeled stream.
"""

from __future__ import annotations

from fastssl.algorithms.base import (
    Batch,
    Nets,
    Ranks,
    Settings,
    State,
    StepOutput,
    Tensor,
    algorithm,
)
from fastssl.algorithms.common.losses import forward, loss_metrics


class SupervisedSettings(Settings):
    """There are no settings."""


@algorithm("supervised", config=SupervisedSettings, forwards="1: labeled")
def step(
    nets: Nets, batch: Batch, state: State, config: Settings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the cross-entropy of the labeled images."""
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    loss = F.cross_entropy(logits, batch.labels)
    return StepOutput(loss=loss, metrics=loss_metrics(labeled=loss))
