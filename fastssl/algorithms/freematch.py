"""FreeMatch: thresholds that follow the network's own confidence, overall and class by class.

They start low and rise with the confidence; a fairness term keeps all classes in use.
Paper: https://arxiv.org/abs/2205.07246. From moving averages (decay m) over weak views of the
confidence t, the prediction a(c) and the histogram of pseudo-labels h(c), all starting at 1/C:

    T(c) = t * a(c) / max a
    H(y, p(x)) + w_u * mean(1[max ^p(w) >= T(argmax)] * H(argmax ^p(w), p(s)))
        + w_f * sum_c norm(a / h)(c) * log norm(b / g)(c)

b is the mean prediction and g the histogram of predicted classes over the trusted strong views.
The last term is the paper's fairness, with its sign; a class that is never predicted is left out.
With bounds (`lowest`, `highest`), ours limit the overall threshold t; TorchSSL limits the product
T(c). TorchSSL warms up with 2,049 supervised steps, but on SVHN alone; USB starts the averages at
1. Ours has no warm-up and starts them as the paper does.
"""

from __future__ import annotations

from pydantic import Field

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
from fastssl.algorithms.common import losses
from fastssl.algorithms.common.settings import WeakStrongSettings


class FreeSettings(WeakStrongSettings):
    """Settings of FreeMatch."""

    fairness_weight: float = Field(0.01, ge=0)
    """Weight of the fairness term (w_f)."""

    decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the three averages."""

    lowest: float = Field(0.0, ge=0, le=1)
    """Lower bound of the overall threshold; the paper bounds it on SVHN by 0.9 and 0.95."""

    highest: float = Field(1.0, ge=0, le=1)
    """Upper bound of the overall threshold."""


def init_state(config: FreeSettings, info: DatasetInfo) -> State:
    """Start every average at 1/C: confidence, prediction by class, pseudo-labels by class."""
    size = 2 * info.num_classes + 1
    return {"averages": info.labeled_shares.new_full((size,), 1 / info.num_classes)}


def thresholds(state: State, config: FreeSettings, num_classes: int) -> Tensor:
    """Return T(c) [C], computed from the averages."""
    overall, predicted = state["averages"][:1], state["averages"][1 : num_classes + 1]
    return overall.clamp(config.lowest, config.highest) * predicted / predicted.max()


@algorithm(
    "freematch",
    views={"weak": "weak", "strong": "strong"},
    forwards="1: labeled, weak and strong together",
    ratio=7,
    config=FreeSettings,
    init_state=init_state,
    thresholds=thresholds,
)
def step(
    nets: Nets, batch: Batch, state: State, config: FreeSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of FreeMatch and update the averages."""
    import torch
    import torch.nn.functional as F

    passes = losses.Passes(nets, batch, config, ranks)
    with torch.no_grad():
        classes, answer = passes.weak.shape[1], passes.weak.softmax(dim=1)
        confidence, pseudo_label = answer.max(dim=1)
        counted = losses.class_frequencies(pseudo_label, classes, answer.new_ones(()))
        # One tensor, so that one collective averages all three over the ranks.
        seen = torch.cat([confidence.mean()[None], answer.mean(0), counted])
        averages = state["averages"]
        averages.copy_(config.decay * averages + (1 - config.decay) * ranks.mean(seen))
        _, predicted, histogram = torch.split(averages, [1, classes, classes])
        levels = thresholds(state, config, classes)
        trusted = (confidence >= levels[pseudo_label]).to(answer.dtype)
    logits, strong, trusted = passes.finish(trusted)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    unlabeled_loss = losses.masked_cross_entropy(strong, pseudo_label, trusted)
    balance = log_balance(strong, trusted, ranks)
    fairness = (losses.normalized_ratio(predicted, histogram) * balance).sum()
    loss = labeled_loss + config.unlabeled_weight * unlabeled_loss
    loss = loss + config.fairness_weight * fairness
    terms = {"labeled": labeled_loss, "unlabeled": unlabeled_loss, "fairness": fairness}
    return losses.step_output(loss, terms, pseudo_label, trusted, {"thresholds": levels})


def log_balance(strong: Tensor, trusted: Tensor, ranks: Ranks) -> Tensor:
    """Return log norm(b / g) [C] of the trusted strong views; 0 for a class never predicted."""
    import torch

    classes = strong.shape[1]
    mean = (strong.softmax(dim=1) * trusted[:, None]).mean(dim=0)
    histogram = losses.class_frequencies(strong.argmax(dim=1), classes, trusted)
    mean, histogram = torch.split(ranks.mean_with_grad(torch.cat([mean, histogram])), classes)
    ratio = losses.normalized_ratio(mean, histogram)
    return torch.where(ratio > 0, ratio, 1).log()
