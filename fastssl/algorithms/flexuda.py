"""Flex-UDA: UDA whose threshold is low for classes that are still badly learnt.

The curriculum of FlexMatch with soft, sharpened targets.
Paper: https://arxiv.org/abs/2110.08263 (FlexMatch) over https://arxiv.org/abs/1904.12848 (UDA).
Loss, with the thresholds T(c) of cpl.py and marks at 0.8:

    mean(1[max p(x) <= tsa] * H(y, p(x)))
        + lam * mean(1[max ^p(w) >= T(argmax ^p(w))] * H(softmax(^z(w) / T), p(s)))

Temperature and annealing are UDA's; so are TorchSSL's departures, named in uda.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import StepOutput, algorithm
from fastssl.algorithms.common import cpl
from fastssl.algorithms.common.losses import losses, soft_loss, three_logits
from fastssl.algorithms.uda import UDASettings, annealed_loss

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class FlexUDASettings(cpl.CurriculumSettings, UDASettings):
    """Settings of the curriculum and of UDA."""

    threshold: float = Field(0.8, gt=0, le=1)
    """Probability at which a guess is marked, and the highest threshold (tau)."""


@algorithm(
    "flexuda",
    views={"weak": "weak", "strong": "strong"},
    config=FlexUDASettings,
    forwards="1: labelled, weak and strong together",
    init_state=cpl.init_state,
    ratio=7,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FlexUDASettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of Flex-UDA."""
    logits, weak, strong = three_logits(nets, batch, config.forward)
    labeled_loss = annealed_loss(logits, batch.labels, config.tsa, progress)
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    target = (weak.detach() / config.temperature).softmax(dim=1)
    unlabeled_loss = soft_loss(strong, target, decision.trusted)  # mean over all U images
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
