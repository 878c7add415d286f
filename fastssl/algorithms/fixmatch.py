"""FixMatch: trust a confident guess on a weak view, and teach it to a strong view.

What the network is sure of under a slight change of an image must hold under a heavy one.
Paper: https://arxiv.org/abs/2001.07685. Loss, with ^ for stop-gradient and H for cross-entropy:

    H(y, p(x)) + lam * mean(1[max ^p(w) >= tau] * H(argmax ^p(w), p(s)))

The mean runs over all U images. TorchSSL does the same, in one concatenated forward (our default;
see `forward`). The ablation of the FlexMatch paper adds a class balance term,
sum_c q_c log(q_c / p_c) with q uniform and p the mean prediction of the batch; its weight and its
images are not stated there, so both are settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common.losses import Forward, hard_loss, three_logits

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class FixMatchSettings(Settings):
    """Settings of FixMatch."""

    threshold: float = Field(0.95, gt=0, le=1)
    """Smallest probability, on the weak view, at which a guess becomes a label (tau)."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabelled loss (lambda_u)."""

    class_balance: float = Field(0.0, ge=0)
    """Weight of the class balance term; 0 is plain FixMatch, 1 our form of the ablation."""

    balance_over: Literal["weak", "strong", "labeled", "all"] = "weak"
    """Images whose mean prediction the class balance term looks at."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: cheaper, not the same numbers."""

    @model_validator(mode="after")
    def _balance_needs_a_gradient(self) -> Self:
        if self.class_balance and self.forward == "split" and self.balance_over in ("weak", "all"):
            raise ValueError("class_balance over weak views needs forward=together")
        return self


@algorithm(
    "fixmatch",
    views={"weak": "weak", "strong": "strong"},
    config=FixMatchSettings,
    forwards="1: labelled, weak and strong together",
    ratio=7,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FixMatchSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of FixMatch."""
    import torch.nn.functional as F

    logits, weak, strong = three_logits(nets, batch, config.forward)
    labeled_loss = F.cross_entropy(logits, batch.labels)

    confidence, pseudo_label = weak.detach().softmax(dim=1).max(dim=1)
    trusted = (confidence >= config.threshold).to(strong.dtype)
    unlabeled_loss = hard_loss(strong, pseudo_label, trusted)  # mean over all U images

    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    metrics = {
        "loss/labeled": labeled_loss.detach(),
        "loss/unlabeled": unlabeled_loss.detach(),
        "trusted": trusted.mean(),
    }
    if config.class_balance:
        over = {"weak": [weak], "strong": [strong], "labeled": [logits]}
        balance = balance_loss(over.get(config.balance_over, [logits, weak, strong]), ranks)
        loss = loss + config.class_balance * balance
        metrics["loss/balance"] = balance.detach()
    return StepOutput(loss, metrics, pseudo_label=pseudo_label, trusted=trusted)


def balance_loss(logits: list[Tensor], ranks: Ranks) -> Tensor:
    """Give the divergence of the uniform distribution from the mean prediction."""
    import torch

    mean = ranks.mean_with_grad(torch.cat(logits).softmax(dim=1).mean(dim=0))  # [C]
    uniform = 1 / mean.shape[0]
    return -(uniform * (mean.clamp_min(1e-12) / uniform).log()).sum()
