"""The few collectives that a step may need; with one process they do nothing.

The global batch is divided over ranks in contiguous slices, so a gather in rank order restores
its order. All slices have one size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class Ranks(Protocol):
    """The collectives that a step may use."""

    @property
    def rank(self) -> int:
        """Index of this process among all."""

    @property
    def world(self) -> int:
        """How many processes there are."""

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the slices of all ranks, [n, ...] -> [n * world, ...], without gradient."""

    def take(self, tensor: Tensor) -> Tensor:
        """Return this rank's slice of something global, [n * world, ...] -> [n, ...]."""

    def mean(self, tensor: Tensor) -> Tensor:
        """Average over ranks, without gradient."""

    def max(self, value: int) -> int:
        """Return the largest value of all ranks; waits for the ranks, not for a device."""

    def gather_uneven(self, tensor: Tensor) -> Tensor:
        """Return the slices of all ranks in rank order; they may differ in length."""

    def mean_with_grad(self, tensor: Tensor) -> Tensor:
        """Average over ranks, with gradient to this rank's share.

        A loss built on it has, once gradients are averaged over ranks (as DDP does), exactly the
        gradient of the single process: no collective is needed on the way back.
        """


class SingleRank:
    """One process: everything is already here."""

    rank = 0
    world = 1

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself, without gradient."""
        return tensor.detach()

    def take(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself, without gradient."""
        return tensor.detach()

    def max(self, value: int) -> int:
        """Return the number itself."""
        return value

    def gather_uneven(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def mean_with_grad(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor


class TorchRanks:
    """The processes of `torch.distributed`: gloo on CPUs, NCCL on CUDA.

    `calls` and `sent` count collectives and the bytes that this rank put into them. They stand
    still inside compiled code, where a changing number would compile the step anew.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        import torch.distributed as dist

        self.group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.calls = 0
        self.sent = 0

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the slices of all ranks in rank order, without gradient."""
        import torch.distributed as dist

        own = tensor.detach().contiguous()
        gathered = own.new_empty((self.world * own.shape[0], *own.shape[1:]))
        self._count(own)
        dist.all_gather_single(gathered, own, group=self.group)
        return gathered

    def take(self, tensor: Tensor) -> Tensor:
        """Return this rank's slice of something global."""
        size = tensor.shape[0] // self.world
        return tensor[self.rank * size : (self.rank + 1) * size]

    def mean(self, tensor: Tensor) -> Tensor:
        """Average over ranks, without gradient."""
        import torch.distributed as dist

        total = tensor.detach().clone().contiguous()
        self._count(total)
        dist.all_reduce(total, group=self.group)
        return total / self.world

    def mean_with_grad(self, tensor: Tensor) -> Tensor:
        """Average over ranks, with gradient to this rank's share."""
        return tensor + (self.mean(tensor) - tensor.detach())

    def max(self, value: int) -> int:
        """Return the largest value of all ranks; over gloo, so no device is waited for."""
        import torch
        import torch.distributed as dist

        number = torch.tensor([value])
        self._count(number)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self.group)
        return int(number)

    def gather_uneven(self, tensor: Tensor) -> Tensor:
        """Return the slices of all ranks, padded to one length and cut again."""
        import torch

        sizes = self.gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = self.gather(padded).chunk(self.world)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def _count(self, tensor: Tensor) -> None:
        import torch

        if not torch.compiler.is_compiling():
            self.calls += 1
            self.sent += tensor.numel() * tensor.element_size()
