"""What a run that fails reports: errors of memory, threads and devices, and summary.json."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastssl.config.resolve import ResolvedConfig
from fastssl.errors import ResourceError, UserError
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import write_json

# Parts of the messages by which torch and the libraries below it report a failed allocation.
SHORT = {"out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc"}
SHORT |= {"alloc_failed"}  # cuBLAS and cuDNN


@contextmanager
def out_of_memory(resolved: ResolvedConfig) -> Iterator[None]:
    """Turn a failed allocation into a ResourceError that names the batch and the keys to lower.

    A thread that cannot be started and a device that fails become a ResourceError, too.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, MemoryError) or any(part in text for part in SHORT):
            ratio = resolved.config.ratio or resolved.algorithm.ratio
            what = f"out of memory with batch={resolved.config.batch} and ratio={ratio}"
            fix = "lower batch or ratio, or type accumulate=2 (BatchNorm then sees the parts)"
        elif "can't start new thread" in text:
            what = "the system allows no more threads"
            fix = "raise the limit of processes (ulimit -u), or end other programs"
        elif isinstance(error, torch.AcceleratorError) and "assert" not in text:  # that is a bug
            what = f"the device failed: {str(error).splitlines()[0]}"
            fix = "look at the device, then type the same line with --resume"
        else:
            raise
        raise ResourceError(what, fix) from error


def write_failure(folder: RunFolder, rank: int, error: UserError, world: int) -> None:
    """Write exit code and message to summary.json if this process was training the run.

    An error before that is a refusal, which changes nothing in a run that was interrupted.
    """
    if world > 1:
        # With the reason: torchrun may end this process before the command prints its error.
        print(f"rank {rank}: exit {error.exit_code}: {error.what}", file=sys.stderr, flush=True)
    if not folder.training or not folder.started():
        return
    content = {"status": "failed", "exit": error.exit_code, "rank": rank, "what": error.what}
    try:
        folder.check_ours()
        write_json(folder.summary, {**content, "fix": error.fix})
    except (OSError, ResourceError):
        print(f"warning: {folder.summary} can't be written", file=sys.stderr)
