"""A run under torchrun: joining the ranks, synchronized BatchNorm, DDP.

With one process there is no group and no wrapper.
"""

from __future__ import annotations

import gc
import json
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from fastssl.distributed.collectives import Ranks
from fastssl.errors import ConfigError, ResourceError, UserError, system_error

TIMEOUT = timedelta(minutes=10)  # a rank that receives nothing for so long gives up
FAILURE = "fastssl/failure"  # key under which the rank that fails first reports why
# Parts of error messages which mean that another rank is gone
LOST = {"connection closed", "connection reset", "broken pipe", "timed out", "nccl", "gloo"}


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
        code = self.ranks.max(failure.exit_code if failure else 0)
        if failure:
            raise failure
        if code:
            stopped = UserError("another rank could not start", "see its message")
            stopped.exit_code = code
            raise stopped

    @contextmanager
    def contact(self, record: Callable[[int, UserError], None]) -> Iterator[None]:
        """Run a block in which a failing rank reports why, and all end with its exit code.

        `record` is called on the rank that failed first. A rank that was killed reports
        nothing; then the first rank that misses it does.
        """
        try:
            yield
        except Exception as error:
            failure, lost = self._as_failure(error)
            first = self._first_failure(failure)
            if first["rank"] == self.ranks.rank:
                record(self.ranks.rank, failure)
            elif lost:  # the other rank's message holds the cause
                what = f"rank {first['rank']} failed first (exit {first['exit']}): {first['what']}"
                failure = UserError(what, first["fix"])
                failure.exit_code = first["exit"]
            if lost:
                raise failure from None
            raise

    def _as_failure(self, error: Exception) -> tuple[UserError, bool]:
        """Return what a rank reports of an error, and whether contact with another was lost."""
        if isinstance(error, UserError):
            return error, False
        text = str(error)
        if self.ranks.world > 1 and any(part in text.lower() for part in LOST):
            what = "lost contact with another rank, which was killed or cut off"
            fix = "look at its machine; --resume goes on from the checkpoint"
            return ResourceError(what, fix), True
        if isinstance(error, OSError) and error.errno is not None:
            return system_error(error), False
        line = text.splitlines()[0] if text else ""
        return UserError(f"{type(error).__name__}: {line}", "this is a bug: report it"), False

    def _first_failure(self, failure: UserError) -> dict[str, Any]:
        """Report a failure to all ranks; return the report of the rank that failed first."""
        own: dict[str, Any] = {"rank": self.ranks.rank, "exit": failure.exit_code}
        own |= {"what": failure.what, "fix": failure.fix}
        if self.ranks.world == 1:
            return own
        from torch.distributed.distributed_c10d import _get_default_store

        try:
            # Sets the value only if there is none yet, and returns the value that is then there.
            found = _get_default_store().compare_set(FAILURE, "", json.dumps(own))
        except RuntimeError:  # the rank that keeps the store is gone
            return own
        first: dict[str, Any] = json.loads(found)
        return first

    def agree(self, values: dict[str, str]) -> None:
        """Refuse to start where ranks differ in what they were given."""
        if self.ranks.world == 1:
            return
        import torch.distributed as dist

        given: list[dict[str, str]] = [{} for _ in range(self.ranks.world)]
        dist.all_gather_object(given, values)
        for rank, other in enumerate(given):
            for name in values:
                if other[name] != given[0][name]:
                    parts = difference(given[0][name], other[name])
                    raise ConfigError(
                        f"rank {rank} has another {name} than rank 0: {parts}",
                        "start all ranks with the same line, the same data and one run folder",
                    )

    def leave(self) -> None:
        """Leave the process group, which nothing else may refer to any more.

        Gloo's threads end with the last reference to the group, and a DDP wrapper holds one. A
        thread that outlives this call may release the tensors of the last reduction while the
        interpreter is shutting down. It cannot take the GIL then, and the process aborts.
        """
        if self.ranks.world == 1:
            return
        import torch.distributed as dist

        if dist.is_initialized():
            gc.collect()  # a DDP wrapper is part of reference cycles
            dist.destroy_process_group()  # waits for outstanding work, then joins the threads


@contextmanager
def joined() -> Iterator[Group]:
    """Join the ranks for a block and leave them after it, whatever ended the block."""
    group = join()
    with warnings.catch_warnings():
        # A kernel of 1x1 lies the same in memory by either layout; DDP warns of it all the same.
        message = "Grad strides do not match bucket view strides"
        warnings.filterwarnings("ignore", message=message)
        try:
            yield group
        except BaseException as error:
            if group.ranks.world > 1:
                _clear_frames(error)
            raise
        finally:
            group.leave()


def _clear_frames(error: BaseException | None) -> None:
    """Drop the local variables that tracebacks keep alive: a run among them holds the group."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def difference(first: str, other: str) -> str:
    """Return where two texts differ, short enough for a line."""
    pairs = zip(first.split(", "), other.split(", "), strict=False)
    apart = [(a, b) for a, b in pairs if a != b] or [(first[-40:], other[-40:])]
    return "; ".join(f"{b[:60]} instead of {a[:60]}" for a, b in apart[:3])


def join() -> Group:
    """Join the ranks that torchrun started, or stay alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group(Ranks())
    import torch.distributed as dist

    # DDP imports this module. Its functions have the default argument group=WORLD: imported once
    # there is a group, they would hold it, and its threads, to the end of the process.
    import torch.distributed.nn
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # CPU tensors go over gloo even where the model's gradients go over NCCL, so that an exchange
    # of numbers between ranks never waits for a device.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, world = next(rendezvous("env://", timeout=TIMEOUT))
        # torchrun's store outlives a restart: addresses of the dead must not be found there.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"fastssl-{attempt}", store)
        dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as error:
        raise ResourceError(
            f"the ranks did not find each other: {error}", "use torchrun"
        ) from error
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return Group(Ranks(rank, world), local, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def wrap(
    model: nn.Module, device: torch.device, ranks: Ranks, *, sync_batchnorm: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Return the bare model, with BatchNorm over all ranks, and what a step calls."""
    if ranks.world == 1:
        return model, model
    from torch.nn.parallel import DistributedDataParallel

    if not sync_batchnorm:
        pass
    elif device.type == "cuda":
        model = _synchronized(model)
    else:
        from fastssl.distributed.sync_batchnorm import convert

        model = convert(model)
    # static_graph: the WRN of the reference has parameters that never get a gradient, at which a
    # plain wrapper raises in its second step. Buffers are equal on all ranks by construction.
    student = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        static_graph=True,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
    )
    return model, student


def _synchronized(model: nn.Module) -> nn.Module:
    """Return the model with torch's SyncBatchNorm; timm converts its own kind of BatchNorm."""
    if any(type(module).__name__ == "BatchNormAct2d" for module in model.modules()):
        from timm.layers import convert_sync_batchnorm

        return convert_sync_batchnorm(model)  # type: ignore[no-any-return]
    made: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return made
