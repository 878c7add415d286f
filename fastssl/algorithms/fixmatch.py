"""FixMatch: a confident prediction on a weak view becomes the label of a strong view.

What the network predicts with confidence for a slightly changed image should hold for a heavily
changed one. Paper: https://arxiv.org/abs/2001.07685. Loss, with ^ for stop-gradient and H for
cross-entropy:

    H(y, p(x)) + lambda_u * mean(1[max ^p(w) >= tau] * H(argmax ^p(w), p(s)))

The mean runs over all U images, not only the confident ones. TorchSSL runs labeled, weak and
strong images in one forward pass, and so does our default (see `forward`). The ablation of the
FlexMatch paper adds a class balance term, sum_c q_c log(q_c / p_c) with q uniform and p the mean
prediction of the batch. The paper does not state its weight and its images: both are settings.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import AlignmentSettings


class FixMatchSettings(AlignmentSettings):
    """Settings of FixMatch."""

    threshold: float = Field(0.95, gt=0, le=1)
    """Confidence on the weak view from which a prediction becomes a label (tau)."""

    class_balance: float = Field(0.0, ge=0)
    """Weight of the class balance term; 0 is plain FixMatch, 1 our form of the ablation."""

    balance_over: Literal["weak", "strong", "labeled", "all"] = "weak"
    """Images whose mean prediction enters the class balance term."""

    @model_validator(mode="after")
    def _balance_needs_a_gradient(self) -> Self:
        if self.class_balance and self.forward != "together":
            if self.balance_over in ("weak", "all"):
                raise ValueError("class_balance over weak views needs forward=together")
            if self.forward == "skip" and self.balance_over == "strong":
                raise ValueError("class_balance over strong views does not go with forward=skip")
        return self


@algorithm(
    "fixmatch",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=FixMatchSettings,
    init_state=losses.alignment_state,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FixMatchSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of FixMatch."""
    import torch.nn.functional as F

    passes = losses.Passes(nets, batch, config, ranks)
    weak = passes.weak
    answer = weak.detach().softmax(dim=1)  # [U, C]
    if config.alignment:
        decay = config.alignment_decay
        answer = losses.align_to_uniform(answer, state["predicted"], decay, ranks)
    confidence, pseudo_label = answer.max(dim=1)  # [U], [U]
    logits, strong, trusted = passes.finish((confidence >= config.threshold).to(weak.dtype))

    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.masked_cross_entropy(strong, pseudo_label, trusted)

    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    if config.class_balance:
        over = {"weak": [weak], "strong": [strong], "labeled": [logits]}
        balance = balance_loss(over.get(config.balance_over, [logits, weak, strong]), ranks)
        loss = loss + config.class_balance * balance
        terms["balance"] = balance
    return losses.step_output(loss, terms, pseudo_label, trusted)


def balance_loss(logits: list[Tensor], ranks: Ranks) -> Tensor:
    """Return the divergence of the mean prediction from the uniform distribution."""
    import torch

    # The mean is taken over all ranks: the term is not linear in the predictions.
    mean = ranks.mean_with_grad(torch.cat(logits).softmax(dim=1).mean(dim=0))  # [C]
    uniform = 1 / mean.shape[0]
    return -(uniform * (mean.clamp_min(1e-12) / uniform).log()).sum()
