"""MixMatch: average two predictions, sharpen them, and train on mixtures of all images.

Between two images the prediction must change linearly, which keeps the function simple.
Paper: https://arxiv.org/abs/1905.02249. With q the sharpened mean of ^p(w1) and ^p(w2), the batch
[(x, y), (w1, q), (w2, q)] is mixed with a permutation of itself (common/mixup.py), and the loss is

    H(y', p(x')) + lambda_u * r * MSE(p(u'), q')

As in TorchSSL, pseudo-labels come from two passes without gradient; the mixed batch passes in
interleaved chunks, of which only the first updates BatchNorm's running statistics; lambda_u is
100, with a ramp over 0.4 of training; there is one mixing weight per batch (in the paper: one per
image, see `per_sample`).
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common.losses import forward, frozen_statistics, loss_metrics, ramp, sharpen
from fastssl.algorithms.common.mixup import forward_chunks, mix, shared_mean
from fastssl.algorithms.common.settings import RampSettings


class MixMatchSettings(RampSettings):
    """Settings of MixMatch."""

    temperature: float = Field(0.5, gt=0)
    """Temperature of the pseudo-labels; below 1 it sharpens them (T)."""

    alpha: float = Field(0.5, gt=0)
    """Shape of the Beta distribution of mixing weights."""

    per_sample: bool = False
    """Draw a mixing weight for each image, as in the paper, instead of one per batch."""

    unlabeled_weight: float = Field(100.0, ge=0)
    """Weight of the unlabeled loss after the ramp (lambda_u)."""


@algorithm(
    "mixmatch",
    views={"one": "weak", "other": "weak"},
    forwards="2 without gradient: each weak view; then 1 + 2 * ratio mixed chunks",
    config=MixMatchSettings,
)
def step(
    nets: Nets, batch: Batch, state: State, config: MixMatchSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of MixMatch."""
    import torch
    import torch.nn.functional as F

    one, other = batch.views["one"], batch.views["other"]
    with torch.no_grad(), frozen_statistics(nets.student):
        answers = [forward(nets.student, view)[0].softmax(dim=1) for view in (one, other)]
        pseudo_labels = sharpen((answers[0] + answers[1]) / 2, config.temperature)
        labels = F.one_hot(batch.labels, pseudo_labels.shape[1]).to(pseudo_labels.dtype)
        mixed = mix(
            [batch.images, one, other],
            [labels, pseudo_labels, pseudo_labels],
            batch.key,
            ranks,
            alpha=config.alpha,
            per_sample=config.per_sample,
        )
    logits = forward_chunks(nets.student, mixed.images)
    entropies = -(mixed.targets * logits.log_softmax(dim=1)).sum(dim=1)
    squares = (logits.softmax(dim=1) - mixed.targets).square().mean(dim=1)
    labeled_loss = shared_mean(entropies, mixed.labeled, len(batch.images))
    unlabeled_loss = shared_mean(squares, 1 - mixed.labeled, 2 * len(one))
    weight = config.unlabeled_weight * ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics=loss_metrics(labeled=labeled_loss, unlabeled=unlabeled_loss),
        pseudo_label=pseudo_labels.argmax(dim=1),
        trusted=pseudo_labels.new_ones(len(pseudo_labels)),
    )
