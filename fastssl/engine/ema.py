"""The averaged weights: parameters are averaged, BatchNorm's buffers are the student's own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Ema:
    """A moving average of a model's parameters, kept in a model of its own."""

    def __init__(self, student: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        self._mine: list[Tensor] = list(self.model.parameters())
        self._theirs = [p.detach() for p in student.parameters()]
        self._buffers = list(zip(self.model.buffers(), student.buffers(), strict=True))

    @torch.no_grad()
    def update(self, alive: Tensor) -> None:
        """Move towards the student by 1 - decay, or not at all where `alive` is 0."""
        gaps = torch._foreach_sub(self._theirs, self._mine)
        torch._foreach_mul_(gaps, alive * (1 - self.decay))
        torch._foreach_add_(self._mine, gaps)

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the student's BatchNorm statistics; needed before an evaluation or a save."""
        for mine, theirs in self._buffers:
            mine.copy_(theirs)
