"""Pseudo-Label: the network's own confident predictions are its labels.

Trained on them, it moves its decision boundary away from regions where images are dense.
Paper: https://www.kaggle.com/blobs/download/forum-message-attachment-files/746/pseudo_label_final.pdf
(Lee, 2013). Loss, with r a linear ramp:

    H(y, p(x)) + lambda_u * r * mean(1[max p(w) >= tau] * H(argmax p(w), p(w)))

One weak view gives both the label and the gradient; its pass leaves BatchNorm's running statistics
unchanged. The threshold and the ramp over 0.4 of training are TorchSSL's; the paper has no
threshold and a ramp in three pieces.
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import RampSettings


class PseudoLabelSettings(RampSettings):
    """Settings of Pseudo-Label."""

    threshold: float = Field(0.95, gt=0, le=1)
    """Confidence from which a prediction becomes a label (tau)."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabeled loss after the ramp (lambda_u)."""


@algorithm(
    "pseudolabel",
    views={"weak": "weak"},
    forwards="2: labeled; weak",
    config=PseudoLabelSettings,
)
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: PseudoLabelSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """Compute the loss of one step of Pseudo-Label."""
    import torch.nn.functional as F

    (logits,) = losses.forward(nets.student, batch.images)
    with losses.frozen_statistics(nets.student):
        (weak,) = losses.forward(nets.student, batch.views["weak"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    confidence, pseudo_label = weak.detach().softmax(dim=1).max(dim=1)  # [U], [U]
    trusted = (confidence >= config.threshold).to(weak.dtype)
    unlabeled_loss = losses.masked_cross_entropy(weak, pseudo_label, trusted)
    weight = config.unlabeled_weight * losses.ramp(progress, config.ramp)
    loss = labeled_loss + weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    return losses.step_output(loss, terms, pseudo_label, trusted)
