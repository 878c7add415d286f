"""Curriculum pseudo-labelling: a threshold for each class that rises as the class is learnt.

Paper: FlexMatch, https://arxiv.org/abs/2110.08263. How well a class is learnt is told by how many
unlabelled images were last guessed, surely, to be of it:

    beta(c) = n(c) / max(max_c n(c), unused)     n(c): images marked c; unused: never marked
    T(c)    = tau * M(beta(c))                   M: x / (2 - x), x, or ln(x + 1) / ln 2
    used    = confidence >= T(guess)             what enters the loss
    marked  = confidence >= tau                  what is remembered

Images are marked at the fixed tau and not at T(c): the marks measure what the network is really
sure of. Marked at T(c), which is low for a class that is little learnt, every guess of that class
would count as learning, and the threshold would rise on the strength of its own low bar.

While nothing is marked every threshold is 0 and every image is used. A mark is never cleared; it
can only change class. Counts are kept by difference, in integers, so a step costs the batch and
not the data set. Where a position stands twice in a batch the last sure one in global order wins,
on every device and rank. Published code recounts all marks each step, keeps one table a rank and
loses it on resume; this does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from fastssl.algorithms.base import Settings
from fastssl.algorithms.common.losses import average

if TYPE_CHECKING:
    from torch import Tensor

    from fastssl.algorithms.base import DatasetInfo, State
    from fastssl.distributed.collectives import Ranks
    from pipelines.loader.batch import Batch


class CurriculumSettings(Settings):
    """How thresholds follow learning."""

    threshold: float = Field(0.95, gt=0, le=1)
    """Probability at which a guess is marked, and the highest threshold (tau)."""

    mapping: Literal["convex", "linear", "concave"] = "convex"
    """How learning turns into a threshold: x / (2 - x), x, or ln(x + 1) / ln 2."""

    warmup: bool = True
    """Count images never marked as one more class, so that thresholds start low."""

    floor: float = Field(0.0, ge=0, le=1)
    """Lowest threshold; the paper saw a slight gain with 0.5."""

    prior: Literal["uniform", "labeled", "estimated"] = "uniform"
    """Share of a class that counts as equally learnt: the same for all (the paper), that of the
    labelled set, or that of the network's own predictions; the last two for unbalanced data."""

    prior_decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the average of predictions that `prior=estimated` goes by."""


class Decision(NamedTuple):
    """What the curriculum says of one batch."""

    trusted: Tensor  # [U] 1 where an image enters the loss, else 0
    pseudo_label: Tensor  # [U] int64
    confidence: Tensor  # [U]
    thresholds: Tensor  # [C]


def init_state(config: CurriculumSettings, info: DatasetInfo) -> State:
    """No image is marked."""
    import torch

    small = torch.int16 if info.num_classes < 2**15 else torch.int32
    counts = torch.zeros(info.num_classes + 1, dtype=torch.int32, device=info.device)
    counts[-1] = info.num_unlabeled
    state = {
        # last sure guess of each unlabelled image, -1 for none
        "marks": torch.full((info.num_unlabeled,), -1, dtype=small, device=info.device),
        # images marked with each class and, last, images never marked
        "counts": counts,
    }
    if config.prior == "labeled":
        state["share"] = info.labeled_shares.to(info.device, torch.float32)
    if config.prior == "estimated":
        state["share"] = torch.zeros(info.num_classes, device=info.device)
    return state


def curriculum(
    logits: Tensor, batch: Batch, state: State, config: CurriculumSettings, ranks: Ranks
) -> Decision:
    """Decide which weak guesses [U, C] to use, and remember the sure ones; needs no gradient."""
    import torch

    with torch.no_grad():
        largest, pseudo_label = logits.max(dim=1)
        confidence = 1 / (logits - largest[:, None]).exp().sum(dim=1)  # that of the softmax
        if config.prior == "estimated":
            seen = ranks.mean(logits.softmax(dim=1).mean(dim=0))
            average(state["share"], seen, config.prior_decay)
        levels = thresholds(state, config)
        trusted = (confidence >= levels[pseudo_label]).to(logits.dtype)
        # -1 says "not sure": guess and sureness travel as one number, in one collective
        confident = torch.where(confidence >= config.threshold, pseudo_label, -1).to(torch.int32)
        remember(state, batch.global_positions, ranks.gather(confident))
    return Decision(trusted, pseudo_label, confidence, levels)


def thresholds(state: State, config: CurriculumSettings) -> Tensor:
    """Compute T(c) [C] from the marks of the steps before."""
    counts = state["counts"].float()
    learnt, unused = counts[:-1], counts[-1]
    if config.prior != "uniform":
        classes = learnt.shape[0]
        # a class expected at half the uniform share is learnt as well with half the marks
        learnt = learnt / (classes * state["share"]).clamp_min(0.01)
    best = learnt.max()
    beta = learnt / (best.maximum(unused) if config.warmup else best).clamp_min(1e-6)
    if config.mapping == "convex":
        mapped = beta / (2 - beta)
    elif config.mapping == "concave":
        mapped = (beta + 1).log2()
    else:
        mapped = beta
    return (config.threshold * mapped).clamp_min(config.floor)


def remember(state: State, position: Tensor, confident: Tensor) -> None:
    """Mark images [n] of the global batch with their sure guesses, -1 where there is none.

    Every occurrence of a position writes the same mark, so the order of writing does not matter,
    and the first occurrence alone counts. No scatter with addition: a sum of comparisons compiles
    into the one kernel that does all the rest.
    """
    import torch

    marks, counts = state["marks"], state["counts"]
    never = counts.shape[0] - 1
    slot = torch.arange(position.shape[0], dtype=torch.int32, device=position.device)
    same = position[:, None] == position[None, :]  # [n, n]
    last = torch.where(same & (confident >= 0), slot, -1).amax(dim=1)  # last sure occurrence, or -1
    first = ~(same & (slot[None, :] < slot[:, None])).any(dim=1)
    old = marks[position].int()
    new = torch.where(last >= 0, confident[last.clamp_min(0)], old)

    moved = first & (new != old)
    gained = torch.where(moved, new, -1)
    lost = torch.where(moved, torch.where(old < 0, never, old), -1)
    label = torch.arange(never + 1, dtype=torch.int32, device=position.device)
    change = (gained[:, None] == label).int() - (lost[:, None] == label).int()  # [n, C + 1]
    counts += change.sum(dim=0, dtype=torch.int32)
    marks[position] = new.to(marks.dtype)


def tables(state: State, decision: Decision) -> dict[str, Tensor]:
    """Give what is worth a look at evaluations: T(c) and the counts."""
    return {"thresholds": decision.thresholds, "counts": state["counts"].clone()}
