"""Flex-UDA: UDA with a lower threshold for classes that are not yet learned well.

This is the curriculum of FlexMatch with soft, sharpened targets.
Paper: https://arxiv.org/abs/2110.08263 (FlexMatch), over https://arxiv.org/abs/1904.12848 (UDA).
Loss, with the thresholds T(c) of common/cpl.py and tau = 0.8:

    mean(1[max p(x) <= tsa] * H(y, p(x)))
        + lambda_u * mean(1[max ^p(w) >= T(argmax ^p(w))] * H(softmax(^z(w) / T), p(s)))

Temperature and annealing are as in UDA, where the differences from TorchSSL are named.
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import cpl
from fastssl.algorithms.common.losses import Passes, soft_cross_entropy, step_output
from fastssl.algorithms.uda import UDASettings, annealed_loss


class FlexUDASettings(cpl.CurriculumSettings, UDASettings):
    """Settings of the curriculum and of UDA."""

    threshold: float = Field(0.8, gt=0, le=1)
    """Confidence at which an image is marked, and the highest threshold (tau)."""


@algorithm(
    "flexuda",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=FlexUDASettings,
    init_state=cpl.init_state,
    thresholds=cpl.thresholds,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FlexUDASettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of Flex-UDA and update the marks."""
    passes = Passes(nets, batch, config, ranks)
    decision = cpl.curriculum(passes.weak, batch, state, config, ranks)
    target = (passes.weak.detach() / config.temperature).softmax(dim=1)
    logits, strong, trusted = passes.finish(decision.trusted)
    labeled_loss = annealed_loss(logits, batch.labels, config.tsa, progress)
    unlabeled_loss = soft_cross_entropy(strong, target, trusted)
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    tables = cpl.tables(state, decision)
    return step_output(loss, terms, decision.pseudo_label, trusted, tables)
