"""FlexMatch: FixMatch with a lower threshold for classes that are not yet learned well.

Hard classes thus contribute from the start; the threshold of a class rises as it is learned.
Paper: https://arxiv.org/abs/2110.08263. Loss, with the thresholds T(c) of common/cpl.py:

    H(y, p(x)) + lambda_u * mean(1[max ^p(w) >= T(argmax ^p(w))] * H(argmax ^p(w), p(s)))

The paper writes `>`, its code `>=`; ours is `>=`. TorchSSL keeps one set of marks per process and
loses them on resume; ours are one set over all ranks and part of the checkpoint.
"""

from __future__ import annotations

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm
from fastssl.algorithms.common import cpl
from fastssl.algorithms.common.losses import forward_all, masked_cross_entropy, step_output
from fastssl.algorithms.common.settings import WeakStrongSettings


class FlexMatchSettings(WeakStrongSettings, cpl.CurriculumSettings):
    """Settings of FlexMatch."""


@algorithm(
    "flexmatch",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=FlexMatchSettings,
    init_state=cpl.init_state,
    thresholds=cpl.thresholds,
)
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: FlexMatchSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """Compute the loss of one step of FlexMatch and update the marks."""
    import torch.nn.functional as F

    logits, weak, strong = forward_all(nets.student, batch, config.forward)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    unlabeled_loss = masked_cross_entropy(strong, decision.pseudo_label, decision.trusted)
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    tables = cpl.tables(state, decision)
    return step_output(loss, terms, decision.pseudo_label, decision.trusted, tables)
