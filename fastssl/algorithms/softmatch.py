"""SoftMatch: use every pseudo-label, with a weight that falls off below the average confidence.

A hard threshold throws correct pseudo-labels away; a soft one keeps them and still prefers
confident ones. Paper: https://arxiv.org/abs/2301.10921. With moving averages (decay m) of mean u
and variance v of the confidence c, starting at 1/C and 1, weight and loss are

    k = exp(-n^2 * min(c - u, 0)^2 / (2 v))
    H(y, p(x)) + lambda_u * mean(k * H(argmax ^p(w), p(s)))

c is the confidence of ^p(w) after uniform alignment (scaled by uniform over running mean of
predictions); the label is the prediction without it. This is USB's form: it divides the variance
by n^2 with n = 2, which is also our default, and starts the running mean of predictions with the
first batch, as ours does. TorchSSL averages the confidences before alignment, and aligns to the
running mean of predictions on labeled images instead of to uniform.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

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
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import WeakStrongSettings


class SoftSettings(WeakStrongSettings):
    """Settings of SoftMatch."""

    decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the averages."""

    sigmas: float = Field(2.0, gt=0)
    """Standard deviation of the confidence over that of the weighting (n)."""

    alignment: bool = True
    """Align confidences to uniform predictions before weighting."""

    @model_validator(mode="after")
    def _no_image_is_skipped(self) -> Self:
        if self.forward == "skip":
            raise ValueError("softmatch gives no image the weight 0; type algo.forward=split")
        return self


def init_state(config: SoftSettings, info: DatasetInfo) -> State:
    """Start the confidence with mean 1/C and variance 1, and without predictions."""
    shares = info.labeled_shares
    return {
        "predicted": shares.new_zeros(len(shares)),
        "mean": shares.new_full((), 1 / len(shares)),
        "variance": shares.new_ones(()),
    }


def thresholds(state: State, config: SoftSettings, num_classes: int) -> Tensor:
    """Return the average confidence [C]: from there on the weight of a pseudo-label is 1."""
    return state["mean"].expand(num_classes)


@algorithm(
    "softmatch",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=SoftSettings,
    init_state=init_state,
    thresholds=thresholds,
)
def step(
    nets: Nets, batch: Batch, state: State, config: SoftSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of SoftMatch and update the averages."""
    import torch
    import torch.nn.functional as F

    passes = losses.Passes(nets, batch, config, ranks)
    with torch.no_grad():
        answer = passes.weak.softmax(dim=1)  # [U, C]
        pseudo_label = answer.argmax(dim=1)
        if config.alignment:
            answer = losses.align_to_uniform(answer, state["predicted"], config.decay, ranks)
        trusted = weights(answer.amax(dim=1), state, config, ranks).to(answer.dtype)
    logits, strong, trusted = passes.finish(trusted)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.masked_cross_entropy(strong, pseudo_label, trusted)
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    return losses.step_output(loss, terms, pseudo_label, trusted)


def weights(confidence: Tensor, state: State, config: SoftSettings, ranks: Ranks) -> Tensor:
    """Update the averages by this batch; return the weight of each image [U]."""
    import torch

    # In double precision: the variance is a small difference of two larger numbers.
    moments = torch.stack([confidence.double().mean(), confidence.double().square().mean()])
    mean, square = ranks.mean(moments)
    count = len(confidence) * ranks.world
    variance = (square - mean**2) * (count / max(count - 1, 1))
    for name, value in (("mean", mean), ("variance", variance)):
        state[name].copy_(config.decay * state[name] + (1 - config.decay) * value)
    below = (confidence - state["mean"]).clamp_max(0)
    return (-((config.sigmas * below) ** 2) / (2 * state["variance"])).exp()
