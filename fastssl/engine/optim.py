"""SGD as in the paper (Nesterov, cosine of 7/16, no decay of 1-D parameters), EMA, fp16 scale."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from fastssl.config.schema import RunConfig

GROWTH_EVERY = 2000  # finite steps in a row after which the scale is doubled
START = 2.0**16


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


class Scaler:
    """The fp16 loss scale, kept on the device; it is halved after an overflow.

    torch.amp.GradScaler does not sync with a fused optimizer either. It is not used because its
    step() sets `optimizer.found_inf`, which here also masks every update after a non-finite loss,
    and because it does not count the skipped steps. The two kernels below are the ones it calls.
    """

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
