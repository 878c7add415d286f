"""SGD as in the paper (Nesterov, cosine of 7/16, no decay of 1-D parameters), and the EMA."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from fastssl.config.schema import RunConfig


def build(model: nn.Module, config: RunConfig) -> torch.optim.SGD:
    """Build the optimizer; every 1-D parameter goes without decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=True
    )
    if config.momentum:
        # A first step that is skipped (fp16 overflow) would leave these unwritten.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def learning_rate(config: RunConfig, step: int) -> float:
    """Return the learning rate of a step: lr · cos(7π/16 · k/K)."""
    return config.lr * math.cos(7 * math.pi / 16 * step / config.steps)


class Ema:
    """An exponential moving average of a model's parameters, held in a second model.

    Parameters are averaged; BatchNorm buffers are copied from the student.
    """

    def __init__(self, student: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        self._averages: list[Tensor] = list(self.model.parameters())
        self._weights = [p.detach() for p in student.parameters()]
        # Pairs of lists, one for each type: a list of mixed types would be copied one by one.
        self._buffers: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, theirs in zip(self.model.buffers(), student.buffers(), strict=True):
            pair = self._buffers.setdefault(own.dtype, ([], []))
            pair[0].append(own)
            pair[1].append(theirs)

    @torch.no_grad()
    def update(self, moves: Tensor) -> None:
        """Move towards the student by 1 - decay, or not at all if the scalar `moves` is 0.

        The student's BatchNorm statistics are copied in every step, so that a step function that
        runs the teacher in eval mode does not depend on when a run is evaluated or saved.
        """
        gaps = torch._foreach_sub(self._weights, self._averages)
        torch._foreach_mul_(gaps, moves.to(self._averages[0].dtype) * (1 - self.decay))
        torch._foreach_add_(self._averages, gaps)
        for own, theirs in self._buffers.values():
            torch._foreach_copy_(own, theirs)
