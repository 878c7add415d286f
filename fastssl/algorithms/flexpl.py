"""Flex-PL: Pseudo-Label whose threshold is low for classes that are still badly learnt.

The curriculum of FlexMatch alone, without strong views. Paper: https://arxiv.org/abs/2110.08263
(FlexMatch). Loss, with the thresholds T(c) of cpl.py and r a linear ramp:

    H(y, p(x)) + lam * r * mean(1[max p(w) >= T(argmax p(w))] * H(argmax p(w), p(w)))

Everything else is Pseudo-Label's; TorchSSL does the same, in the curriculum's warm-up form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastssl.algorithms.base import StepOutput, algorithm
from fastssl.algorithms.common import cpl
from fastssl.algorithms.common.losses import forward, frozen_statistics, hard_loss, losses, ramp
from fastssl.algorithms.pseudolabel import PseudoLabelSettings

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class FlexPLSettings(cpl.CurriculumSettings, PseudoLabelSettings):
    """Settings of the curriculum, whose threshold it takes, and of Pseudo-Label."""


@algorithm(
    "flexpl",
    views={"weak": "weak"},
    config=FlexPLSettings,
    forwards="2: labelled; weak",
    init_state=cpl.init_state,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FlexPLSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of Flex-PL."""
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    with frozen_statistics(nets.student):
        (weak,) = forward(nets.student, batch.views["weak"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    unlabeled_loss = hard_loss(
        weak, decision.pseudo_label, decision.trusted
    )  # mean over all U images
    weight = config.unlabeled_weight * ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * unlabeled_loss,
        metrics={
            **losses(labeled=labeled_loss, unlabeled=unlabeled_loss),
            "trusted": decision.trusted.mean(),
        },
        tables=cpl.tables(state, decision),
        pseudo_label=decision.pseudo_label,
        trusted=decision.trusted,
    )
