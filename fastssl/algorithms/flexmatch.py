"""FlexMatch: FixMatch with a lower threshold for classes that are not yet learned well.

Hard classes thus contribute from the start; the threshold of a class rises as it is learned.
Paper: https://arxiv.org/abs/2110.08263. Loss, with the thresholds T(c) of common/cpl.py:

    H(y, p(x)) + lambda_u * mean(1[max ^p(w) >= T(argmax ^p(w))] * H(argmax ^p(w), p(s)))

The paper writes `>`, its code `>=`; ours is `>=`. TorchSSL keeps one set of marks per process and
loses them on resume; ours are one set over all ranks and part of the checkpoint.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from fastssl.algorithms.base import (
    Batch,
    DatasetInfo,
    Nets,
    Ranks,
    State,
    StepOutput,
    Tensor,
    algorithm,
)
from fastssl.algorithms.common import cpl, losses
from fastssl.algorithms.common.settings import AlignmentSettings


class FlexMatchSettings(AlignmentSettings, cpl.CurriculumSettings):
    """Settings of FlexMatch."""

    @model_validator(mode="after")
    def _one_expectation_of_classes(self) -> Self:
        if self.alignment and self.prior != "uniform":
            raise ValueError(f"alignment expects equal classes; prior={self.prior} does not")
        return self


def init_state(config: FlexMatchSettings, info: DatasetInfo) -> State:
    """Return a state in which no image is marked and nothing was predicted."""
    return cpl.init_state(config, info) | losses.alignment_state(config, info)


@algorithm(
    "flexmatch",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=FlexMatchSettings,
    init_state=init_state,
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

    passes = losses.Passes(nets, batch, config, ranks)
    weak = passes.weak.detach()
    if config.alignment:
        decay = config.alignment_decay
        # Logits again, as the curriculum takes them: their softmax are the aligned predictions.
        weak = losses.align_to_uniform(weak.softmax(dim=1), state["predicted"], decay, ranks).log()
    decision = cpl.curriculum(weak, batch, state, config, ranks)
    logits, strong, trusted = passes.finish(decision.trusted)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.masked_cross_entropy(strong, decision.pseudo_label, trusted)
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss}
    tables = cpl.tables(state, decision)
    return losses.step_output(loss, terms, decision.pseudo_label, trusted, tables)
