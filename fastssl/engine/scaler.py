"""The fp16 loss scale, kept on the device: torch's own decides on the host and waits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GROWTH_EVERY = 2000
START = 2.0**16


class Scaler:
    """Multiplies the loss, divides the gradients, and halves its scale after an overflow."""

    def __init__(self, model: nn.Module, device: torch.device, enabled: bool) -> None:
        self.enabled = enabled
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.state = {
            "scale": torch.full((), START, device=device),
            "good": torch.zeros((), dtype=torch.int64, device=device),
            "skipped": torch.zeros((), dtype=torch.int64, device=device),
        }

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss to call backward on."""
        return loss * self.state["scale"] if self.enabled else loss

    @torch.no_grad()
    def unscale(self) -> Tensor | None:
        """Divide the gradients in place; return 1 where one overflowed, else 0."""
        if not self.enabled:
            return None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_mul_(gradients, 1 / self.state["scale"])
        norms = torch.stack(torch._foreach_norm(gradients))
        return (~torch.isfinite(norms).all()).float()

    @torch.no_grad()
    def update(self, overflow: Tensor | None) -> None:
        """Halve the scale after an overflow, double it after 2,000 good steps."""
        if overflow is None:
            return
        bad = overflow > 0
        good = torch.where(bad, 0, self.state["good"] + 1)
        grow = good >= GROWTH_EVERY
        factor = torch.where(bad, 0.5, torch.where(grow, 2.0, 1.0))
        self.state["scale"].mul_(factor)
        self.state["good"].copy_(torch.where(grow, 0, good))
        self.state["skipped"].add_(bad)
