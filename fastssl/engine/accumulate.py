"""Forward and backward of a step, of the whole batch or of parts whose gradients accumulate."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fastssl.algorithms import StepOutput, supervised_step
from fastssl.engine.build import Learner
from pipelines.loader.batch import Batch


def backward(learner: Learner, batch: Batch) -> StepOutput:
    """Run the step function and backward, in as many parts as `accumulate` sets.

    Loss and metrics are then the means over the parts.
    """
    supervised = len(batch.views) < len(learner.algorithm.views)  # one of `supervised_steps`
    function = supervised_step if supervised else learner.step
    settings = learner.resolved.settings
    parts = learner.resolved.config.accumulate
    outs = []
    for part in range(parts):
        piece = batch if parts == 1 else cut(batch, part, parts, learner.ranks.world)
        with reduction(learner, last=part == parts - 1):
            with learner.device.autocast():
                out = function(
                    learner.nets, piece, learner.state, settings, learner.fraction, learner.ranks
                )
            learner.scaler.scale(out.loss / parts).backward()  # type: ignore[no-untyped-call]
        learner.quality.add(out, piece.position)
        outs.append(replace(out, loss=out.loss.detach()))
    learner.stepped = True
    return outs[0] if parts == 1 else average(outs)


def cut(batch: Batch, part: int, parts: int, world: int) -> Batch:
    """Return one of `parts` equal parts of a rank's batch, with its own random key."""

    def piece(tensor: Tensor) -> Tensor:
        return tensor.chunk(parts)[part]

    # [world * n] in rank order: every rank contributes its own part.
    by_rank = batch.global_positions.view(world, -1)
    return Batch(
        images=piece(batch.images),
        labels=piece(batch.labels),
        views={name: piece(view) for name, view in batch.views.items()},
        position=piece(batch.position),
        global_positions=by_rank.chunk(parts, dim=1)[part].reshape(-1),
        key=batch.key + part,
    )


def reduction(learner: Learner, *, last: bool) -> AbstractContextManager[Any]:
    """Return the context of one part: gradients are averaged over ranks in the last part only.

    The first step of a process is an exception: all of its parts reduce. DDP with static_graph
    learns the graph in its first backward pass, and `no_sync` around that pass fails an assertion
    or leaves gradients unreduced (torch 2.14). Reducing in every part gives the same gradients.
    """
    if last or not learner.stepped or not isinstance(learner.student, DistributedDataParallel):
        return nullcontext()
    return learner.student.no_sync()


def average(parts: list[StepOutput]) -> StepOutput:
    """Return the means of losses and metrics; one loss that is not finite makes the mean so.

    Tables, pseudo-labels and trusted are those of the last part.
    """

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack([value.float().reshape(()) for value in values]).mean()

    metrics = {name: mean([part.metrics[name] for part in parts]) for name in parts[-1].metrics}
    return replace(parts[-1], loss=mean([part.loss for part in parts]), metrics=metrics)
