"""Pi-Model: the network must give the same answer for two weak views of an image.

Small changes of an image do not change what it shows, so they must not change the prediction.
Paper: https://arxiv.org/abs/1610.02242. Loss, with ^ for stop-gradient and r a linear ramp:

    H(y, p(x)) + lambda_u * r * MSE(p(w1), ^p(w2))

There are three passes; those of the unlabeled images leave BatchNorm's running statistics
unchanged. As in TorchSSL, the second view is a fixed target, the ramp is linear over 0.4 of
training and lambda_u is 10. The paper lets gradient flow into both views and ramps by
exp(-5 (1 - t)^2).
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import RampSettings


class PiModelSettings(RampSettings):
    """Settings of the Pi-Model."""

    unlabeled_weight: float = Field(10.0, ge=0)
    """Weight of the unlabeled loss after the ramp (lambda_u)."""


@algorithm(
    "pimodel",
    views={"one": "weak", "other": "weak"},
    forwards="3: labeled; one weak view; another, without gradient",
    config=PiModelSettings,
)
def step(
    nets: Nets, batch: Batch, state: State, config: PiModelSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of the Pi-Model."""
    import torch
    import torch.nn.functional as F

    (logits,) = losses.forward(nets.student, batch.images)
    with losses.frozen_statistics(nets.student):
        (one,) = losses.forward(nets.student, batch.views["one"])
        with torch.no_grad():
            (other,) = losses.forward(nets.student, batch.views["other"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.squared_error(one, other.softmax(dim=1))
    weight = config.unlabeled_weight * losses.ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics=losses.loss_metrics(labeled=labeled_loss, unlabeled=unlabeled_loss),
    )
