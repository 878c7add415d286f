"""A run under torchrun: joining the ranks, synchronised BatchNorm, DDP.

In one process all of it is nothing: no group, no wrapper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import nn

from fastssl.errors import ConfigError, ResourceError, UserError
from fastssl.ranks import Ranks, SingleRank, TorchRanks

TIMEOUT = timedelta(minutes=10)  # a rank that hears nothing for so long gives up


@dataclass(frozen=True, slots=True)
class Group:
    """This process among the others."""

    ranks: Ranks
    local_rank: int = 0
    local_world: int = 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block that may fail on one rank so that all fail with it."""
        failure: UserError | None = None
        try:
            yield
        except UserError as error:
            failure = error
        code = self.ranks.loudest(failure.exit_code if failure else 0)
        if failure:
            raise failure
        if code:
            stopped = UserError("another rank could not start", "see its message")
            stopped.exit_code = code
            raise stopped

    def agree(self, facts: dict[str, str]) -> None:
        """Refuse to start where ranks differ in what they were given."""
        if self.ranks.world == 1:
            return
        import torch.distributed as dist

        told: list[dict[str, str]] = [{} for _ in range(self.ranks.world)]
        dist.all_gather_object(told, facts)
        for rank, other in enumerate(told):
            for name in facts:
                if other[name] != told[0][name]:
                    parts = difference(told[0][name], other[name])
                    raise ConfigError(
                        f"rank {rank} has another {name} than rank 0: {parts}",
                        "start all ranks with the same line and the same data",
                    )

    def leave(self) -> None:
        """Leave the process group."""
        if self.ranks.world > 1:
            import torch.distributed as dist

            if dist.is_initialized():
                dist.destroy_process_group()


def difference(first: str, other: str) -> str:
    """Return the words in which two texts part, short enough for a line."""
    pairs = zip(first.split(", "), other.split(", "), strict=False)
    apart = [(a, b) for a, b in pairs if a != b] or [(first[-40:], other[-40:])]
    return "; ".join(f"{b[:60]} instead of {a[:60]}" for a, b in apart[:3])


def join() -> Group:
    """Join the ranks that torchrun started, or stay alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group(SingleRank())
    import torch.distributed as dist

    # CPU tensors travel over gloo even where the model's gradients go over NCCL, so that asking
    # the others never waits for a device.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise ResourceError(
            f"the ranks did not find each other: {error}", "use torchrun"
        ) from error
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return Group(TorchRanks(), local, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def wrap(model: nn.Module, device: torch.device, ranks: Ranks) -> tuple[nn.Module, nn.Module]:
    """Return the bare model, with BatchNorm over all ranks, and what a step calls."""
    if ranks.world == 1:
        return model, model
    from torch.nn.parallel import DistributedDataParallel

    if device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    else:
        from fastssl.batchnorm import convert

        model = convert(model)
    # static_graph: the WRN of the reference has parameters that never get a gradient, at which a
    # plain wrapper raises in its second step. Buffers are equal on all ranks by construction.
    student = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        static_graph=True,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )
    return model, student
