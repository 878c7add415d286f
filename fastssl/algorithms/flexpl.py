"""Flex-PL: Pseudo-Label with a lower threshold for classes that are not yet learned well.

This is the curriculum of FlexMatch alone, without strong views.
Paper: https://arxiv.org/abs/2110.08263 (FlexMatch). Loss, with the thresholds T(c) of
common/cpl.py and r a linear ramp:

    H(y, p(x)) + lambda_u * r * mean(1[max p(w) >= T(argmax p(w))] * H(argmax p(w), p(w)))

All else is as in Pseudo-Label. TorchSSL does the same, with the warm-up form of the curriculum.
"""

from __future__ import annotations

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import cpl, losses
from fastssl.algorithms.pseudolabel import PseudoLabelSettings


class FlexPLSettings(cpl.CurriculumSettings, PseudoLabelSettings):
    """Settings of the curriculum, which defines the threshold, and of Pseudo-Label."""


@algorithm(
    "flexpl",
    views={"weak": "weak"},
    forwards="2: labeled; weak",
    config=FlexPLSettings,
    init_state=cpl.init_state,
    thresholds=cpl.thresholds,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FlexPLSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of Flex-PL and update the marks."""
    import torch.nn.functional as F

    (logits,) = losses.forward(nets.student, batch.images)
    with losses.frozen_statistics(nets.student):
        (weak,) = losses.forward(nets.student, batch.views["weak"])
    labeled_loss = F.cross_entropy(logits, batch.labels)
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    unlabeled_loss = losses.masked_cross_entropy(weak, decision.pseudo_label, decision.trusted)
    weight = config.unlabeled_weight * losses.ramp(progress, config.ramp)
    loss = labeled_loss + weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    tables = cpl.tables(state, decision)
    return losses.step_output(loss, terms, decision.pseudo_label, decision.trusted, tables)
