"""FreeMatch: thresholds that follow the network's own confidence, overall and class by class.

They start low and rise as the network grows sure; a fairness term keeps all classes guessed.
Paper: https://arxiv.org/abs/2205.07246. From moving averages (decay m) over weak views of the
confidence t, of the prediction a(c) and of the histogram of guesses h(c), all starting at 1/C:

    T(c) = t * a(c) / max a
    H(y, p(x)) + lam * mean(1[max ^p(w) >= T(argmax)] * H(argmax ^p(w), p(s)))
        + w_f * sum_c norm(a / h)(c) * log norm(b / g)(c)

b is the mean prediction and g the histogram of guesses over the strong views that are used. The
last term is the paper's fairness, with its sign; a class without a guess has no part in it.
TorchSSL warms up with 2,048 supervised steps and USB starts the averages at 1: we do as the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import (
    Forward,
    hard_loss,
    losses,
    normalized,
    shares,
    three_logits,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, DatasetInfo, Nets, Ranks, State


class FreeSettings(Settings):
    """Settings of FreeMatch."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabelled loss (w_u)."""

    fairness_weight: float = Field(0.01, ge=0)
    """Weight of the fairness term (w_f)."""

    decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the three averages."""

    lowest: float = Field(0.0, ge=0, le=1)
    """Lower bound of the overall threshold; the paper bounds it on SVHN by 0.9 and 0.95."""

    highest: float = Field(1.0, ge=0, le=1)
    """Upper bound of the overall threshold."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: cheaper, not the same numbers."""


def init_state(config: FreeSettings, info: DatasetInfo) -> State:
    """Every average starts at 1/C: [confidence, prediction by class, guesses by class]."""
    import torch

    size = 2 * info.num_classes + 1
    return {"averages": torch.full((size,), 1 / info.num_classes, device=info.device)}


@algorithm(
    "freematch",
    views={"weak": "weak", "strong": "strong"},
    config=FreeSettings,
    forwards="1: labelled, weak and strong together",
    init_state=init_state,
    ratio=7,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FreeSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of FreeMatch."""
    import torch
    import torch.nn.functional as F

    logits, weak, strong = three_logits(nets, batch, config.forward)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    with torch.no_grad():
        classes, answer = strong.shape[1], weak.softmax(dim=1)
        confidence, pseudo_label = answer.max(dim=1)
        counted = shares(pseudo_label, classes, 1)
        seen = torch.cat([confidence.mean()[None], answer.mean(0), counted])
        averages = state["averages"]
        averages.copy_(config.decay * averages + (1 - config.decay) * ranks.mean(seen))
        overall, predicted, guessed = torch.split(averages, [1, classes, classes])
        overall = overall.clamp(config.lowest, config.highest)
        thresholds = overall * predicted / predicted.max()
        trusted = (confidence >= thresholds[pseudo_label]).to(strong.dtype)
    unlabeled_loss = hard_loss(strong, pseudo_label, trusted)  # mean over all U images
    fairness = (normalized(predicted, guessed) * balance(strong, trusted, ranks)).sum()
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    return StepOutput(
        loss=loss + config.fairness_weight * fairness,
        metrics={
            **losses(labeled=labeled_loss, unlabeled=unlabeled_loss, fairness=fairness),
            "trusted": trusted.mean(),
        },
        tables={"thresholds": thresholds},
        pseudo_label=pseudo_label,
        trusted=trusted,
    )


def balance(strong: Tensor, trusted: Tensor, ranks: Ranks) -> Tensor:
    """Give log norm(b / g) [C] of the strong views that are used; 0 for a class never guessed."""
    import torch

    classes = strong.shape[1]
    used = (strong.softmax(dim=1) * trusted[:, None]).mean(dim=0)
    drawn = shares(strong.argmax(dim=1), classes, trusted)
    used, drawn = torch.split(ranks.mean_with_grad(torch.cat([used, drawn])), classes)
    ratio = normalized(used, drawn)
    return torch.where(ratio > 0, ratio, 1).log()
