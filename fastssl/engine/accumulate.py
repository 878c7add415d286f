"""A step in parts, to save memory: a batch is cut, and what the parts gave is put together."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fastssl.algorithms.base import StepOutput
from pipelines.loader.batch import Batch


def cut(batch: Batch, part: int, parts: int, world: int) -> Batch:
    """Return one of `parts` equal parts of a batch, with a key of its own."""

    def piece(tensor: Tensor) -> Tensor:
        return tensor.chunk(parts)[part] if len(tensor) else tensor

    global_positions = batch.global_positions.view(world, -1).chunk(parts, dim=1)[part].reshape(-1)
    return Batch(
        images=piece(batch.images),
        labels=piece(batch.labels),
        views={name: piece(view) for name, view in batch.views.items()},
        position=piece(batch.position),
        global_positions=global_positions
        if len(batch.global_positions)
        else batch.global_positions,
        key=batch.key + part,
    )


def average(parts: list[StepOutput]) -> StepOutput:
    """Return the means of losses and metrics; a loss that is not finite is in the mean.

    Tables, guess and trusted are those of the last part.
    """

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack([value.float().reshape(()) for value in values]).mean()

    metrics = {name: mean([part.metrics[name] for part in parts]) for name in parts[-1].metrics}
    return replace(parts[-1], loss=mean([part.loss for part in parts]), metrics=metrics)
