"""UDA: teach the sharpened, confident distribution of a weak view to a strong view.

The answer must be the same however strongly an image is changed, and it may stay a distribution.
Paper: https://arxiv.org/abs/1904.12848. Loss, with z for logits and ^ for stop-gradient:

    mean(1[max p(x) <= tsa] * H(y, p(x)))
        + lam * mean(1[max ^p(w) >= tau] * H(softmax(^z(w) / T), p(s)))

Training signal annealing (`tsa`, off by default) drops labelled images that are already learnt;
TorchSSL looks at the largest probability there, the UDA paper at that of the true class: ours is
TorchSSL's. T is 0.5 in the FlexMatch paper (our default) and 0.4 in TorchSSL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import Forward, hard_loss, losses, soft_loss, three_logits

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State

Annealing = Literal["none", "linear", "log", "exp"]


class UDASettings(Settings):
    """Settings of UDA."""

    threshold: float = Field(0.8, gt=0, le=1)
    """Smallest probability, on the weak view, at which a guess is taught (tau)."""

    temperature: float = Field(0.5, gt=0)
    """Sharpening of the guess (T); TorchSSL runs 0.4."""

    tsa: Annealing = "none"
    """How the largest probability of a labelled image that still teaches rises to 1."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabelled loss (lambda_u)."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: cheaper, not the same numbers."""


@algorithm(
    "uda",
    views={"weak": "weak", "strong": "strong"},
    config=UDASettings,
    forwards="1: labelled, weak and strong together",
    ratio=7,
)
def step(
    nets: Nets, batch: Batch, state: State, config: UDASettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of UDA."""
    logits, weak, strong = three_logits(nets, batch, config.forward)
    labeled_loss = annealed_loss(logits, batch.labels, config.tsa, progress)
    confidence, pseudo_label = weak.detach().softmax(dim=1).max(dim=1)
    trusted = (confidence >= config.threshold).to(strong.dtype)
    target = (weak.detach() / config.temperature).softmax(dim=1)
    unlabeled_loss = soft_loss(strong, target, trusted)  # mean over all U images
    return StepOutput(
        loss=labeled_loss + config.unlabeled_weight * unlabeled_loss,
        metrics={
            **losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
            "trusted": trusted.mean(),
        },
        pseudo_label=pseudo_label,
        trusted=trusted,
    )


def annealed_loss(logits: Tensor, labels: Tensor, tsa: Annealing, progress: Tensor) -> Tensor:
    """Give the labelled loss without the images that are learnt beyond the present limit."""
    if tsa == "none":
        return hard_loss(logits, labels, logits.new_ones(()))
    if tsa == "linear":
        risen = progress
    elif tsa == "log":
        risen = 1 - (-5 * progress).exp()
    else:
        risen = (5 * (progress - 1)).exp()
    chance = 1 / logits.shape[1]
    limit = risen * (1 - chance) + chance
    confidence = logits.detach().softmax(dim=1).amax(dim=1)
    return hard_loss(logits, labels, (confidence <= limit).to(logits.dtype))
