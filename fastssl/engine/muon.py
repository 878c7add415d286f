"""Muon: momentum SGD whose update of a weight matrix is replaced by a nearly orthogonal matrix.

With the gradient G of a matrix W, its average B, momentum m and learning rate lr:

    B <- m B + (1 - m) G,  U = m B + (1 - m) G,  W <- W - lr * O(U)

O(U) is close to the orthogonal matrix nearest to U: a few Newton-Schulz iterations bring all
singular values of U near 1. See https://kellerjordan.github.io/posts/muon/. torch.optim.Muon does
the same, but only for 2-D weights, and it has no `found_inf`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Keller Jordan; they raise small values fastest
TINY = 1e-7  # the smallest norm to divide by, so that zeros stay zeros


class Muon(torch.optim.Optimizer):
    """Muon for the groups with `matrices` set, and SGD for all others.

    One optimizer for both, so that a run has one state to save and one flag to set: nothing
    changes unless `found_inf`, a scalar on the device, is 0.

    `rescale` sets each matrix to the norm sqrt(rows) before its update. Where BatchNorm follows,
    the network computes the same at any scale, and the step is then relative to the weight.
    Without it the learning rate is multiplied by sqrt(max(1, rows / columns)), as in
    torch.optim.Muon. Matrices have no weight decay.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.9,
        nesterov: bool = True,
        rescale: bool = True,
        iterations: int = 3,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,  # of SGD; Muon's momentum always is
            "weight_decay": 0.0,
            "matrices": False,
            "rescale": rescale,
            "iterations": iterations,
        }
        super().__init__(groups, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.found_inf = torch.zeros((), device=parameter.device)
                if group["momentum"] or group["matrices"]:
                    # A first step that is skipped would leave these unwritten.
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient, without waiting for the device."""
        assert closure is None, "gradients are computed before"
        for group in self.param_groups:
            trained = [one for one in group["params"] if one.grad is not None]
            gradients = [one.grad for one in trained]
            averages = [self.state[one].get("momentum_buffer") for one in trained]
            if group["matrices"]:
                for given in zip(trained, gradients, averages, strict=True):
                    self._update(*given, group)
            else:
                keys = ("lr", "momentum", "nesterov", "weight_decay")
                options: dict[str, Any] = {key: group[key] for key in keys}
                options |= {"fused": True, "found_inf": self.found_inf}
                sgd(trained, gradients, averages, dampening=0.0, maximize=False, **options)

    def _update(
        self, weight: Tensor, gradient: Tensor, average: Tensor, group: dict[str, Any]
    ) -> None:
        new_average = average.lerp(gradient, 1 - group["momentum"])
        update = as_matrix(gradient.lerp(new_average, group["momentum"]))
        matrix, rate = as_matrix(weight), group["lr"]
        rows, columns = matrix.shape
        if group["rescale"]:
            matrix = matrix * (rows**0.5 / matrix.norm().clamp_min(TINY))
        else:
            rate *= max(1, rows / columns) ** 0.5
        new = matrix.add(orthogonalized(update, group["iterations"]), alpha=-rate)
        if weight.ndim == 4:
            new = new.view(rows, *weight.shape[2:], -1).permute(0, 3, 1, 2)
        # torch.where, not a product with 0: what is not finite must not reach the weights.
        moves = self.found_inf == 0
        weight.copy_(torch.where(moves, new, weight))
        average.copy_(torch.where(moves, new_average, average))


def as_matrix(weight: Tensor) -> Tensor:
    """Return [out, in] of a linear layer, [out, h * w * in] of a convolution.

    In this order the weight of a convolution that is channels-last is not copied.
    """
    return weight.permute(0, 2, 3, 1).flatten(1) if weight.ndim == 4 else weight


def orthogonalized(update: Tensor, iterations: int) -> Tensor:
    """Return a matrix with the singular vectors of `update` and singular values near 1."""
    a, b, c = COEFFICIENTS
    tall = update.shape[0] > update.shape[1]
    x = (update.T if tall else update).bfloat16()
    x = x / x.norm().clamp_min(TINY)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
