"""FlexMatch: FixMatch whose threshold is low for classes that are still badly learnt.

So hard classes are taught from the start, and the bar rises for each as it is learnt.
Paper: https://arxiv.org/abs/2110.08263. Loss, with the thresholds T of cpl.py:

    H(y, p(x)) + lam * mean(1[max ^p(w) >= T(argmax ^p(w))] * H(argmax ^p(w), p(s)))

The paper writes `>`, its code `>=`: so do we. TorchSSL keeps one set of marks a process and loses
them on resume; ours are one set over all ranks and part of the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import StepOutput, algorithm
from fastssl.algorithms.common import cpl
from fastssl.algorithms.common.losses import Forward, hard_loss, losses, three_logits

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class FlexMatchSettings(cpl.CurriculumSettings):
    """Settings of FlexMatch."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabelled loss (lambda_u)."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: cheaper, not the same numbers."""


@algorithm(
    "flexmatch",
    views={"weak": "weak", "strong": "strong"},
    config=FlexMatchSettings,
    forwards="1: labelled, weak and strong together",
    init_state=cpl.init_state,
    ratio=7,
)
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: FlexMatchSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """One step of FlexMatch."""
    import torch.nn.functional as F

    logits, weak, strong = three_logits(nets, batch, config.forward)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    unlabeled_loss = hard_loss(
        strong, decision.pseudo_label, decision.trusted
    )  # mean over all U images
    return StepOutput(
        loss=labeled_loss + config.unlabeled_weight * unlabeled_loss,
        metrics={
            **losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
            "trusted": decision.trusted.mean(),
        },
        tables=cpl.tables(state, decision),
        pseudo_label=decision.pseudo_label,
        trusted=decision.trusted,
    )
