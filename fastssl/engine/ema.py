"""The EMA model: parameters are averaged, BatchNorm buffers are copied from the student."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Ema:
    """An exponential moving average of a model's parameters, held in a second model."""

    def __init__(self, student: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        self._averages: list[Tensor] = list(self.model.parameters())
        self._weights = [p.detach() for p in student.parameters()]
        self._buffers = list(zip(self.model.buffers(), student.buffers(), strict=True))

    @torch.no_grad()
    def update(self, moves: Tensor) -> None:
        """Move towards the student by 1 - decay, or not at all if the scalar `moves` is 0."""
        gaps = torch._foreach_sub(self._weights, self._averages)
        torch._foreach_mul_(gaps, moves * (1 - self.decay))
        torch._foreach_add_(self._averages, gaps)

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the student's BatchNorm statistics; needed before an evaluation or a save."""
        for mine, theirs in self._buffers:
            mine.copy_(theirs)
