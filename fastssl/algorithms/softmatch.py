"""SoftMatch: use every guess, with a weight that falls off below the average confidence.

A hard threshold throws right guesses away; a soft one keeps them and still favours sure ones.
Paper: https://arxiv.org/abs/2301.10921. With moving averages (decay m) of mean u and variance v of
the confidence c, starting at 1/C and 1, the weight of an image and the loss are

    k = exp(-n^2 * min(c - u, 0)^2 / (2 v))
    H(y, p(x)) + lam * mean(k * H(argmax ^p(w), p(s)))

Confidence is that of ^p(w) after uniform alignment (scaled by uniform over running mean of
predictions); the label is the guess without it. USB divides the variance by n^2 with n = 2, which
is also our default; both start the running mean of predictions with the first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import (
    Forward,
    align,
    average,
    hard_loss,
    losses,
    three_logits,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, DatasetInfo, Nets, Ranks, State


class SoftSettings(Settings):
    """Settings of SoftMatch."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabelled loss (lambda_u)."""

    decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the averages."""

    sigmas: float = Field(2.0, gt=0)
    """How many standard deviations narrower the weighting is than the confidence (n)."""

    alignment: bool = True
    """Align confidences to uniform predictions before weighting."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: cheaper, not the same numbers."""


def init_state(config: SoftSettings, info: DatasetInfo) -> State:
    """Confidence starts with mean 1/C and variance 1; predictions are not yet known."""
    import torch

    classes, device = info.num_classes, info.device
    return {
        "predicted": torch.zeros(classes, device=device),
        "mean": torch.full((), 1 / classes, device=device),
        "variance": torch.ones((), device=device),
    }


@algorithm(
    "softmatch",
    views={"weak": "weak", "strong": "strong"},
    config=SoftSettings,
    forwards="1: labelled, weak and strong together",
    init_state=init_state,
    ratio=7,
)
def step(
    nets: Nets, batch: Batch, state: State, config: SoftSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of SoftMatch."""
    import torch
    import torch.nn.functional as F

    logits, weak, strong = three_logits(nets, batch, config.forward)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    with torch.no_grad():
        answer = weak.softmax(dim=1)
        pseudo_label = answer.argmax(dim=1)
        if config.alignment:
            predicted = average(state["predicted"], ranks.mean(answer.mean(dim=0)), config.decay)
            answer = align(answer, predicted, torch.full_like(predicted, 1 / len(predicted)))
        trusted = weights(answer.amax(dim=1), state, config, ranks).to(strong.dtype)
    unlabeled_loss = hard_loss(strong, pseudo_label, trusted)  # mean over all U images
    return StepOutput(
        loss=labeled_loss + config.unlabeled_weight * unlabeled_loss,
        metrics={
            **losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
            "trusted": trusted.mean(),
        },
        pseudo_label=pseudo_label,
        trusted=trusted,
    )


def weights(confidence: Tensor, state: State, config: SoftSettings, ranks: Ranks) -> Tensor:
    """Move the averages by this batch, then weigh each image by its confidence [U]."""
    import torch

    # in double: the variance is a small difference of two larger numbers
    moments = torch.stack([confidence.double().mean(), confidence.double().square().mean()])
    mean, square = ranks.mean(moments)
    count = len(confidence) * ranks.world
    variance = (square - mean**2) * (count / max(count - 1, 1))
    for name, value in (("mean", mean), ("variance", variance)):
        state[name].copy_(config.decay * state[name] + (1 - config.decay) * value)
    below = (confidence - state["mean"]).clamp_max(0)
    return (-((config.sigmas * below) ** 2) / (2 * state["variance"])).exp()
