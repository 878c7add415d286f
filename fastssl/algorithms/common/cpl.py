"""Curriculum pseudo labeling (CPL): one threshold per class, which rises as the class is learned.

Paper: FlexMatch, https://arxiv.org/abs/2110.08263. How well a class is learned is measured by the
number of unlabeled images whose last confident prediction was that class:

    beta(c)   = n(c) / max(max_c n(c), unused)   n(c): images marked c; unused: never marked
    T(c)      = tau * M(beta(c))                 M: x / (2 - x), x, or ln(x + 1) / ln 2
                floor + (tau - floor) * M(beta(c)) with range=scale
    trusted   = confidence >= T(pseudo-label)    enters the loss
    confident = confidence >= tau                marks the image with its pseudo-label

While nothing is marked, every threshold is 0 and every image is used. A mark is never removed; it
can only change its class. The counts are integers, updated by what the batch changes, so a step
costs as much as the batch and not as the dataset. TorchSSL and USB recount all marks in each
step, keep one table per process and lose it on resume; ours is one table over all ranks and part
of the checkpoint. When all images are marked with one class, TorchSSL keeps the thresholds of the
step before; ours follow the equations above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fastssl.algorithms.base import Batch, DatasetInfo, Ranks, Settings, State, Tensor
from fastssl.algorithms.common.losses import update_average

if TYPE_CHECKING:
    import torch


class CurriculumSettings(Settings):
    """Settings of the per-class thresholds."""

    threshold: float = Field(0.95, gt=0, le=1)
    """Confidence at which an image is marked, and the highest threshold (tau)."""

    mapping: Literal["convex", "linear", "concave"] = "convex"
    """Threshold as a function of the learning status: x / (2 - x), x, or ln(x + 1) / ln 2."""

    warmup: bool = True
    """Count images never marked as one more class, so that thresholds start low."""

    floor: float = Field(0.0, ge=0, le=1)
    """Lowest threshold; the paper reports a slight gain with 0.5."""

    range: Literal["clamp", "scale"] = "clamp"
    """How the floor is kept. clamp: thresholds below it become the floor. scale: the mapping runs
    from floor to threshold. The paper names a range from 0.5 and gives no equation for it."""

    prior: Literal["uniform", "labeled", "estimated"] = "uniform"
    """Expected class frequencies: equal (the paper), those of the labeled set, or those of the
    network's own predictions; the last two are for unbalanced data."""

    prior_decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the moving average of predictions that `prior=estimated` uses."""

    @model_validator(mode="after")
    def _range_rises(self) -> Self:
        if self.range == "scale" and self.floor > self.threshold:
            raise ValueError(
                f"floor is {self.floor:g}; expected at most threshold ({self.threshold:g}) with "
                "range=scale"
            )
        return self


class Decision(NamedTuple):
    """The curriculum's decision for one batch."""

    trusted: Tensor  # [U] 1 where an image enters the loss, else 0
    pseudo_label: Tensor  # [U] int64
    thresholds: Tensor  # [C]


def init_state(config: CurriculumSettings, info: DatasetInfo) -> State:
    """Return a state in which no image is marked."""
    import torch

    small = torch.int16 if info.num_classes < 2**15 else torch.int32
    counts = torch.zeros(info.num_classes + 1, dtype=torch.int32, device=info.device)
    counts[-1] = info.num_unlabeled
    state = {
        # [N] last confident pseudo-label of each unlabeled image, -1 for none
        "marks": torch.full((info.num_unlabeled,), -1, dtype=small, device=info.device),
        # [C + 1] images marked with each class and, last, images never marked
        "counts": counts,
    }
    if config.prior == "labeled":
        state["share"] = info.labeled_shares.clone()
    if config.prior == "estimated":
        state["share"] = torch.zeros_like(info.labeled_shares)
    return state


def curriculum(
    logits: Tensor, batch: Batch, state: State, config: CurriculumSettings, ranks: Ranks
) -> Decision:
    """Decide which images to use by the logits [U, C] of their weak views; update the marks."""
    import torch

    with torch.no_grad():
        largest, pseudo_label = logits.max(dim=1)
        # The largest probability of the softmax, without computing the others.
        confidence = 1 / (logits - largest[:, None]).exp().sum(dim=1)
        if config.prior == "estimated":
            seen = ranks.mean(logits.softmax(dim=1).mean(dim=0))
            update_average(state["share"], seen, config.prior_decay)
        levels = thresholds(state, config, dtype=logits.dtype)
        trusted = (confidence >= levels[pseudo_label]).to(logits.dtype)
        # Images are counted at the fixed threshold, not at the flexible one. Counting at the
        # flexible threshold would let a class raise its own threshold by being easy to pass.
        # One collective instead of two: -1 encodes "not confident".
        confident = torch.where(confidence >= config.threshold, pseudo_label, -1).to(torch.int32)
        update_counts(state, batch.global_positions, ranks.gather(confident))
    return Decision(trusted, pseudo_label, levels)


def thresholds(
    state: State,
    config: CurriculumSettings,
    num_classes: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return T(c) [C], computed from the marks of the steps before; single precision by default."""
    counts = state["counts"].to(dtype) if dtype else state["counts"].float()
    learned, unused = counts[:-1], counts[-1]
    if config.prior != "uniform":
        # A class expected at half the uniform frequency is learned equally well with half the
        # marks. The bound keeps a class that is not expected at all from dividing by 0.
        learned = learned / (learned.shape[0] * state["share"]).clamp_min(0.01)
    most = learned.max()
    beta = learned / (most.maximum(unused) if config.warmup else most).clamp_min(1e-6)
    if config.mapping == "convex":
        mapped = beta / (2 - beta)
    elif config.mapping == "concave":
        mapped = (beta + 1).log2()
    else:
        mapped = beta
    if config.range == "scale":
        return config.floor + (config.threshold - config.floor) * mapped
    return (config.threshold * mapped).clamp_min(config.floor)


def update_counts(state: State, positions: Tensor, confident: Tensor) -> None:
    """Mark the images [n] of the global batch with their pseudo-labels, -1 where not confident.

    The positions must be distinct: with a repeated one the counts would drift from the marks.
    Sampling without replacement guarantees it. A sum of comparisons instead of a scatter with
    addition, because it compiles into the same kernel as all the rest.
    """
    import torch

    marks, counts = state["marks"], state["counts"]
    never = counts.shape[0] - 1  # where images without a mark are counted
    old = marks[positions].int()
    new = torch.where(confident >= 0, confident, old)
    label = torch.arange(never + 1, dtype=torch.int32, device=positions.device)
    gained = torch.where(new < 0, never, new)[:, None] == label  # [n, C + 1]
    lost = torch.where(old < 0, never, old)[:, None] == label
    counts += (gained.int() - lost.int()).sum(dim=0, dtype=torch.int32)
    marks[positions] = new.to(marks.dtype)


def tables(state: State, decision: Decision) -> dict[str, Tensor]:
    """Return T(c) and the counts, which are logged at evaluations."""
    return {"thresholds": decision.thresholds, "counts": state["counts"].clone()}
