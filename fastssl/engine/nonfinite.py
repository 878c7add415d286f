"""The check for non-finite steps.

The flag lives on the device, so a step does not wait for it. The loop reads it at log steps,
evaluations and checkpoints, where it waits for the device anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NonFiniteCheck:
    """Records the first step whose loss or gradient was not finite.

    From that step on `update` returns 0, which masks the updates of weights, momenta and EMA.
    BatchNorm statistics and the algorithm's state are not protected: the loop raises
    DivergedError before anything is logged, evaluated or saved.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.alive = torch.ones((), device=device)  # 1, then 0 from the first bad step on
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    @torch.no_grad()
    def gradients_are_finite(self) -> Tensor:
        """Return a boolean scalar on the device."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # A norm for each tensor instead of a test for each element: one fused launch.
        return torch.isfinite(torch.stack(torch._foreach_norm(gradients)).sum())

    @torch.no_grad()
    def update(self, finite: Tensor, step: int) -> Tensor:
        """Record `step` if it is the first that is not finite; return 1 while all were, else 0."""
        first = (self.alive > 0) & ~finite
        self.bad_step.copy_(torch.where(first, step, self.bad_step))
        self.alive.mul_(finite)
        return self.alive
