"""The few collectives that a step may need; with one process they do nothing.

The global batch is divided over ranks in contiguous slices, so a gather in rank order restores
its order. All slices have one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run: gloo between CPUs, NCCL between GPUs; by default this one alone."""

    rank: int = 0  # index of this process
    world: int = 1  # number of processes

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the slices of all ranks, [n, ...] -> [n * world, ...], without gradient."""
        if self.world == 1:
            return tensor.detach()
        import torch.distributed as dist

        own = tensor.detach().contiguous()
        gathered = own.new_empty((self.world * own.shape[0], *own.shape[1:]))
        dist.all_gather_single(gathered, own)
        return gathered

    def take(self, tensor: Tensor) -> Tensor:
        """Return this rank's slice of something global, [n * world, ...] -> [n, ...]."""
        if self.world == 1:
            return tensor
        size = tensor.shape[0] // self.world
        return tensor[self.rank * size : (self.rank + 1) * size]

    def mean(self, tensor: Tensor) -> Tensor:
        """Average over ranks, without gradient."""
        if self.world == 1:
            return tensor.detach()
        import torch.distributed as dist

        total = tensor.detach().clone().contiguous()
        dist.all_reduce(total)
        return total / self.world

    def mean_with_grad(self, tensor: Tensor) -> Tensor:
        """Average over ranks, with gradient to this rank's share.

        A loss built on it has, once gradients are averaged over ranks (as DDP does), exactly the
        gradient of the single process: no collective is needed on the way back.
        """
        return tensor if self.world == 1 else tensor + (self.mean(tensor) - tensor.detach())

    def max(self, value: int) -> int:
        """Return the largest value of all ranks; over gloo, so no device is waited for."""
        if self.world == 1:
            return value
        import torch
        import torch.distributed as dist

        number = torch.tensor([value])
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return int(number)

    def gather_uneven(self, tensor: Tensor) -> Tensor:
        """Return the slices of all ranks in rank order; they may differ in length."""
        if self.world == 1:
            return tensor
        import torch

        # Padded to one length, gathered, and cut again.
        sizes = self.gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = self.gather(padded).chunk(self.world)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
