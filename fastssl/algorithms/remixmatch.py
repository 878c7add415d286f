"""ReMixMatch: MixMatch with aligned pseudo-labels, strong views and a rotation task.

Pseudo-labels keep the class frequencies of the labeled set; a strong view must match its weak one.
Paper: https://arxiv.org/abs/1911.09785. With q = ^p(w), scaled by labeled class frequencies over
the running mean of predictions and sharpened, the batch [(x, y), (s1, q), (s2, q), (w, q)] is
mixed with a permutation of itself (common/mixup.py). The loss is, with r a linear ramp,

    H(y', p(x')) + 1.5 * r * H(q', p(u')) + 0.5 * r * H(q, p(s1)) + 0.5 * H(k, rotation(rot_k(s1)))

As in TorchSSL, pseudo-labels come from a pass without gradient; the mixed batch passes in
interleaved chunks, of which only the first updates running statistics; the ramp covers 1/64 of
training and not the rotation loss; there is one mixing weight per batch (in the paper: per image).
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import (
    Batch,
    DatasetInfo,
    Nets,
    Ranks,
    State,
    StepOutput,
    Tensor,
    algorithm,
)
from fastssl.algorithms.common import losses, rng
from fastssl.algorithms.common.mixup import forward_chunks, mix, rotate, shared_mean
from fastssl.algorithms.mixmatch import MixMatchSettings


class ReMixSettings(MixMatchSettings):
    """Settings of ReMixMatch."""

    alpha: float = Field(0.75, gt=0)
    """Shape of the Beta distribution of mixing weights."""

    unlabeled_weight: float = Field(1.5, ge=0)
    """Weight of the loss of mixed unlabeled images after the ramp (lambda_u)."""

    strong_weight: float = Field(0.5, ge=0)
    """Weight of the loss of the unmixed strong view after the ramp."""

    rotation_weight: float = Field(0.5, ge=0)
    """Weight of the rotation loss."""

    ramp: float = Field(1 / 64, ge=0, le=1)
    """Share of training over which the first two weights rise from 0; 0 for no ramp."""

    decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the running mean of predictions."""


def init_state(config: ReMixSettings, info: DatasetInfo) -> State:
    """Start without predictions; the target frequencies are those of the labeled set."""
    shares = info.labeled_shares
    return {"predicted": shares.new_zeros(len(shares)), "wanted": shares.clone()}


@algorithm(
    "remixmatch",
    views={"weak": "weak", "strong": "strong", "other": "strong"},
    forwards="1 without gradient: weak; then 1 + 3 * ratio mixed chunks; strong; strong, rotated",
    config=ReMixSettings,
    init_state=init_state,
    heads={"rotation": 4},
)
def step(
    nets: Nets, batch: Batch, state: State, config: ReMixSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of ReMixMatch."""
    import torch
    import torch.nn.functional as F

    weak, strong, other = batch.views["weak"], batch.views["strong"], batch.views["other"]
    with torch.no_grad(), losses.frozen_statistics(nets.student):
        pseudo_labels = pseudo_label(losses.forward(nets.student, weak)[0], state, config, ranks)
        labels = F.one_hot(batch.labels, pseudo_labels.shape[1]).to(pseudo_labels.dtype)
        mixed = mix(
            [batch.images, strong, other, weak],
            [labels, pseudo_labels, pseudo_labels, pseudo_labels],
            batch.key,
            ranks,
            alpha=config.alpha,
            per_sample=config.per_sample,
        )
        turns = rng.choice(batch.key, 100, len(weak), 4, offset=ranks.rank * len(weak))
    logits = forward_chunks(nets.student, mixed.images)
    with losses.frozen_statistics(nets.student):
        (anchored,) = losses.forward(nets.student, strong)
        rotated = losses.at_least_fp32(nets.student(rotate(strong, turns), heads=True)["rotation"])
    entropies = -(mixed.targets * logits.log_softmax(dim=1)).sum(dim=1)
    labeled_loss = shared_mean(entropies, mixed.labeled, len(batch.images))
    mixed_loss = shared_mean(entropies, 1 - mixed.labeled, 3 * len(weak))
    strong_loss = losses.soft_cross_entropy(anchored, pseudo_labels)
    rotation_loss = F.cross_entropy(rotated, turns)
    risen = config.unlabeled_weight * mixed_loss + config.strong_weight * strong_loss
    return StepOutput(
        loss=labeled_loss
        + losses.ramp(progress, config.ramp) * risen
        + config.rotation_weight * rotation_loss,
        metrics=losses.loss_metrics(
            labeled=labeled_loss, unlabeled=mixed_loss, strong=strong_loss, rotation=rotation_loss
        ),
        pseudo_label=pseudo_labels.argmax(dim=1),
        trusted=pseudo_labels.new_ones(len(pseudo_labels)),
    )


def pseudo_label(logits: Tensor, state: State, config: ReMixSettings, ranks: Ranks) -> Tensor:
    """Return predictions, aligned to the labeled class frequencies and sharpened [U, C]."""
    answer = logits.softmax(dim=1)
    predicted = losses.update_average(
        state["predicted"], ranks.mean(answer.mean(dim=0)), config.decay
    )
    return losses.sharpen(
        losses.align_distribution(answer, predicted, state["wanted"]), config.temperature
    )
