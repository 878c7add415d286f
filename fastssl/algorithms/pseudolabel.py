"""Pseudo-Label: the network's own confident guesses are its labels.

Trained on them, it moves its boundary away from where images lie dense.
Paper: https://www.kaggle.com/blobs/download/forum-message-attachment-files/746/pseudo_label_final.pdf
(Lee, 2013). Loss, with r a linear ramp:

    H(y, p(x)) + lam * r * mean(1[max p(w) >= tau] * H(argmax p(w), p(w)))

One weak view gives both label and gradient; its pass leaves BatchNorm's running statistics alone.
The threshold and the ramp over 0.4 of training are TorchSSL's; the paper has no threshold and
ramps in three pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import forward, frozen_statistics, hard_loss, losses, ramp

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class PseudoLabelSettings(Settings):
    """Settings of Pseudo-Label."""

    threshold: float = Field(0.95, gt=0, le=1)
    """Smallest probability at which a guess becomes a label (tau)."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabelled loss after the ramp (lambda_u)."""

    ramp: float = Field(0.4, ge=0, le=1)
    """Share of training over which the unlabelled weight rises from 0; 0 for no ramp."""


@algorithm(
    "pseudolabel",
    views={"weak": "weak"},
    config=PseudoLabelSettings,
    forwards="2: labelled; weak",
)
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: PseudoLabelSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """One step of Pseudo-Label."""
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    with frozen_statistics(nets.student):
        (weak,) = forward(nets.student, batch.views["weak"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    confidence, pseudo_label = weak.detach().softmax(dim=1).max(dim=1)
    trusted = (confidence >= config.threshold).to(weak.dtype)
    unlabeled_loss = hard_loss(weak, pseudo_label, trusted)  # mean over all U images
    weight = config.unlabeled_weight * ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics={
            **losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
            "trusted": trusted.mean(),
        },
        pseudo_label=pseudo_label,
        trusted=trusted,
    )
