"""UDA: the sharpened distribution of a weak view, where confident, is the target of a strong view.

The prediction must be the same however strongly an image is changed; the target stays soft.
Paper: https://arxiv.org/abs/1904.12848. Loss, with z for logits and ^ for stop-gradient:

    mean(1[max p(x) <= tsa] * H(y, p(x)))
        + lambda_u * mean(1[max ^p(w) >= tau] * H(softmax(^z(w) / T), p(s)))

Training signal annealing (`tsa`, off by default) drops labeled images that are already learned.
TorchSSL compares the largest probability with the limit, the UDA paper that of the true class;
ours is TorchSSL's. T is 0.5 in the FlexMatch paper (our default) and 0.4 in TorchSSL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import WeakStrongSettings

Annealing = Literal["none", "linear", "log", "exp"]


class UDASettings(WeakStrongSettings):
    """Settings of UDA."""

    threshold: float = Field(0.8, gt=0, le=1)
    """Confidence on the weak view from which an image is used (tau)."""

    temperature: float = Field(0.5, gt=0)
    """Temperature of the targets; below 1 it sharpens them (T). TorchSSL uses 0.4."""

    tsa: Annealing = "none"
    """How the limit of annealing, above which labeled images are dropped, rises to 1."""


@algorithm(
    "uda",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=UDASettings,
)
def step(
    nets: Nets, batch: Batch, state: State, config: UDASettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of UDA."""
    passes = losses.Passes(nets, batch, config, ranks)
    weak = passes.weak.detach()
    confidence, pseudo_label = weak.softmax(dim=1).max(dim=1)  # [U], [U]
    target = (weak / config.temperature).softmax(dim=1)  # [U, C]
    logits, strong, trusted = passes.finish((confidence >= config.threshold).to(weak.dtype))
    labeled_loss = annealed_loss(logits, batch.labels, config.tsa, progress)
    unlabeled_loss = losses.soft_cross_entropy(strong, target, trusted)
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    return losses.step_output(loss, terms, pseudo_label, trusted)


def annealed_loss(logits: Tensor, labels: Tensor, tsa: Annealing, progress: Tensor) -> Tensor:
    """Return the labeled loss without the images whose confidence is above the current limit."""
    if tsa == "none":
        return losses.masked_cross_entropy(logits, labels, logits.new_ones(()))
    if tsa == "linear":
        risen = progress
    elif tsa == "log":
        risen = 1 - (-5 * progress).exp()
    else:
        risen = (5 * (progress - 1)).exp()
    chance = 1 / logits.shape[1]
    limit = risen * (1 - chance) + chance
    confidence = logits.detach().softmax(dim=1).amax(dim=1)
    return losses.masked_cross_entropy(logits, labels, (confidence <= limit).to(logits.dtype))
