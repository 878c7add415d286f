"""Pi-Model: two weak views of an image must get the same answer from the network.

Small changes of an image do not change what it shows, so they must not change the answer.
Paper: https://arxiv.org/abs/1610.02242. Loss, with ^ for stop-gradient and r a linear ramp:

    H(y, p(x)) + lam * r * MSE(p(w1), ^p(w2))

Three passes; those of the unlabelled images leave BatchNorm's running statistics alone. As
TorchSSL: the second view is a fixed target, the ramp is linear over 0.4 of training and lam is 10;
the paper lets gradient flow into both views and ramps by exp(-5 (1 - t)^2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import forward, frozen_statistics, losses, ramp, square_loss

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class PiModelSettings(Settings):
    """Settings of the Pi-Model."""

    unlabeled_weight: float = Field(10.0, ge=0)
    """Weight of the unlabelled loss after the ramp (lambda_u)."""

    ramp: float = Field(0.4, ge=0, le=1)
    """Share of training over which the unlabelled weight rises from 0; 0 for no ramp."""


@algorithm(
    "pimodel",
    views={"one": "weak", "other": "weak"},
    config=PiModelSettings,
    forwards="3: labelled; one weak view; another, without gradient",
)
def step(
    nets: Nets, batch: Batch, state: State, config: PiModelSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of the Pi-Model."""
    import torch
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    with frozen_statistics(nets.student):
        (one,) = forward(nets.student, batch.views["one"])
        with torch.no_grad():
            (other,) = forward(nets.student, batch.views["other"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = square_loss(one, other.softmax(dim=1))
    weight = config.unlabeled_weight * ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics=losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
    )
