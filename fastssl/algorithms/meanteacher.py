"""Mean Teacher: the network must answer as the moving average of its own past does.

An average of weights errs less than each of them, and so makes better targets.
Paper: https://arxiv.org/abs/1703.01780. Loss, with p' the answer of the average network, ^ for
stop-gradient and r a linear ramp:

    H(y, p(x)) + lam * r * MSE(p(w2), ^p'(w1))

The teacher normalises by batch statistics, as in training, and no unlabelled pass moves running
statistics. As TorchSSL: lam 50, linear ramp over 0.4 of training, and the moving average of the
whole run as teacher; the paper ramps by exp(-5 (1 - t)^2) and moves the average faster at first.
In a short run a slow teacher holds the student back: lower `ema` with the number of steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import forward, frozen_statistics, losses, ramp, square_loss

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class MeanTeacherSettings(Settings):
    """Settings of Mean Teacher."""

    unlabeled_weight: float = Field(50.0, ge=0)
    """Weight of the unlabelled loss after the ramp (lambda_u)."""

    ramp: float = Field(0.4, ge=0, le=1)
    """Share of training over which the unlabelled weight rises from 0; 0 for no ramp."""


@algorithm(
    "meanteacher",
    views={"one": "weak", "other": "weak"},
    config=MeanTeacherSettings,
    forwards="3: labelled; a weak view; another one through the teacher, without gradient",
)
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: MeanTeacherSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """One step of Mean Teacher."""
    import torch
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    with frozen_statistics(nets.student):
        (student,) = forward(nets.student, batch.views["other"])
    with torch.no_grad(), frozen_statistics(nets.teacher):
        (teacher,) = forward(nets.teacher, batch.views["one"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = square_loss(student, teacher.softmax(dim=1))
    weight = config.unlabeled_weight * ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics=losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
    )
