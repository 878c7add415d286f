"""The divergence flag: from the first non-finite step on, nothing moves any more.

The flag lives on the device, so watching costs no wait. The loop reads it at log steps, where
it waits anyway, and stops the run with everything as it was before the bad step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fastssl.algorithms.base import State
from fastssl.distributed.collectives import Ranks


class Group:
    """Tensors of one type and room for their values, in one piece and in their shapes.

    A launch then does for all of them what would take hundreds, one by one.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        sizes = [tensor.numel() for tensor in tensors]
        self.all_before, self.all_now = tensors[0].new_empty((2, sum(sizes)))
        self.before, self.now = (
            [piece.view(t.shape) for piece, t in zip(room.split(sizes), tensors, strict=True)]
            for room in (self.all_before, self.all_now)
        )


class NonFiniteCheck:
    """Remembers whether training is still finite, and undoes a step that is not."""

    def __init__(self, model: nn.Module, state: State, images: int, device: torch.device) -> None:
        self.alive = torch.ones((), device=device)
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        # A tensor with a row an unlabelled image is too large to copy; a step changes only the
        # rows of its batch.
        self._rows = [v for v in state.values() if v.ndim and v.shape[0] == images > 0]
        kept = {id(tensor) for tensor in self._rows}
        others = [*model.buffers(), *(v for v in state.values() if id(v) not in kept)]
        types = dict.fromkeys(tensor.dtype for tensor in others)
        self._groups = [Group([t for t in others if t.dtype == dtype]) for dtype in types]
        # What CPU ranks ask each other every step rides on the reduction that is made anyway.
        self.ask: Callable[[], int] | None = None
        self.heard = torch.zeros(())
        self._rows_before: list[Tensor] = []

    @torch.no_grad()
    def remember(self, positions: Tensor) -> None:
        """Copy what the coming step may change besides the weights: O(batch)."""
        for group in self._groups:
            torch._foreach_copy_(group.before, group.tensors)
        self._rows_before = [rows[positions] for rows in self._rows]

    @torch.no_grad()
    def judge(self, loss: Tensor, step: int, ranks: Ranks, spared: Tensor | None = None) -> Tensor:
        """Lower the flag where loss or gradient is not finite; return it.

        `spared` is the fp16 scaler's overflow flag: an overflow skips its step, no more.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients)).sum()
        fine = torch.isfinite(norms) if spared is None else torch.isfinite(norms) | (spared > 0)
        # Gradients are the same on all ranks, losses are not: the ranks must agree.
        finite = torch.isfinite(loss).float()
        if self.ask is None:
            everywhere = ranks.mean(finite)
        else:
            both = torch.stack([finite, torch.tensor(float(self.ask()))])
            everywhere, self.heard = ranks.mean(both)
        fine = fine & (everywhere == 1)
        first = (self.alive > 0) & ~fine
        self.bad_step.copy_(torch.where(first, step, self.bad_step))
        self.alive.mul_(fine)
        return self.alive

    @torch.no_grad()
    def settle(self, positions: Tensor) -> None:
        """Put back what a bad step changed."""
        ok = self.alive > 0
        for group in self._groups:
            torch._foreach_copy_(group.now, group.tensors)
            # A choice, and no product: what a bad step left may be NaN.
            torch.where(ok, group.all_now, group.all_before, out=group.all_now)
            torch._foreach_copy_(group.tensors, group.now)
        for rows, before in zip(self._rows, self._rows_before, strict=True):
            # Positions may repeat; all their copies hold the same row, so the order is free.
            rows[positions] = torch.where(ok, rows[positions], before)
