"""The fp16 loss scale, kept on the device.

torch.amp.GradScaler does not sync with a fused optimizer either. It is not used because its
step() sets `optimizer.found_inf`, which here also masks every update after a non-finite loss, and
because it does not count the skipped steps. The two kernels below are the ones that it calls.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

GROWTH_EVERY = 2000  # finite steps in a row after which the scale is doubled
START = 2.0**16


class Scaler:
    """Multiplies the loss, divides the gradients, and halves its scale after an overflow."""

    def __init__(self, model: nn.Module, device: torch.device, enabled: bool) -> None:
        self.enabled = enabled
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.state = {
            "scale": torch.full((), START, device=device),
            "good": torch.zeros((), dtype=torch.int32, device=device),
            "skipped": torch.zeros((), dtype=torch.int64, device=device),
        }

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss to call backward on."""
        return loss * self.state["scale"] if self.enabled else loss

    @torch.no_grad()
    def unscale(self) -> Tensor | None:
        """Divide the gradients in place; return 1 if one overflowed, else 0; None without fp16."""
        if not self.enabled:
            return None
        overflow = torch.zeros_like(self.state["scale"])
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        inverse = self.state["scale"].reciprocal()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)
        return overflow

    @torch.no_grad()
    def update(self, overflow: Tensor | None) -> None:
        """Halve the scale after an overflow, double it after 2,000 finite steps in a row."""
        if overflow is None:
            return
        scale, good = self.state["scale"], self.state["good"]
        torch._amp_update_scale_(scale, good, overflow, 2.0, 0.5, GROWTH_EVERY)
        self.state["skipped"].add_(overflow > 0)
