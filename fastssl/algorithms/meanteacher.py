"""Mean Teacher: the network must agree with the moving average of its own past weights.

An average of weights makes fewer errors than each of them, and so gives better targets.
Paper: https://arxiv.org/abs/1703.01780. Loss, with p' for the average network (the teacher), ^ for
stop-gradient and r a linear ramp:

    H(y, p(x)) + lambda_u * r * MSE(p(w2), ^p'(w1))

The teacher normalizes by batch statistics, as in training, and no unlabeled pass changes running
statistics. As in TorchSSL, lambda_u is 50, the ramp is linear over 0.4 of training, and the
teacher is the moving average of the whole run. The paper ramps by exp(-5 (1 - t)^2) and updates
the average faster at first. A slow teacher holds the student back in a short run, where `ema`
is therefore lower unless it is set.
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import RampSettings


class MeanTeacherSettings(RampSettings):
    """Settings of Mean Teacher."""

    unlabeled_weight: float = Field(50.0, ge=0)
    """Weight of the unlabeled loss after the ramp (lambda_u)."""


@algorithm(
    "meanteacher",
    views={"one": "weak", "other": "weak"},
    forwards="3: labeled; a weak view; another one through the teacher, without gradient",
    config=MeanTeacherSettings,
)
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: MeanTeacherSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """Compute the loss of one step of Mean Teacher."""
    import torch
    import torch.nn.functional as F

    (logits,) = losses.forward(nets.student, batch.images)
    with losses.frozen_statistics(nets.student):
        (student,) = losses.forward(nets.student, batch.views["other"])
    with torch.no_grad(), losses.frozen_statistics(nets.teacher):
        (teacher,) = losses.forward(nets.teacher, batch.views["one"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.squared_error(student, teacher.softmax(dim=1))
    weight = config.unlabeled_weight * losses.ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics=losses.loss_metrics(labeled=labeled_loss, unlabeled=unlabeled_loss),
    )
