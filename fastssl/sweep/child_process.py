"""The process that trains a cell: its command line, its environment and its last output."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from fastssl.sweep.grid import Cell
from pipelines.cpus import available_cpus

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def train_command(cell: Cell, jobs: int, *options: str) -> list[str]:
    """Return `train CONFIG key=value …`, with a share of the cores if several cells train."""
    # -m would import modules from the working folder, which may be a run folder of somebody else,
    # also where the sweep itself does not (-P; the command `fastssl`).
    safe = [] if {"", os.getcwd()} & {*sys.path} else ["-P"]
    line = [sys.executable, *safe, "-m", "fastssl", "train", cell.config, *cell.overrides()]
    # `auto` would be measured while the other cells start.
    if jobs > 1 and cell.keys.get("threads", "auto") == "auto":
        line.append(f"threads={max(1, available_cpus() // jobs)}")
    return [*line, *(["--trust-code"] if cell.trust_code else []), *options]


def die_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGTERM when the sweep is killed, so that the run saves and stops.

    Runs in the new process; `parent` is the sweep's process. It does nothing where there is no
    prctl (not Linux). The kernel watches the thread that forked, and `preexec_fn` is unsafe with
    threads: the sweep therefore starts its cells from its only thread instead of a thread pool.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        # Until the new program starts, this process has the sweep's handler, which would take the
        # signal and be forgotten.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # killed before the kernel was asked
            os._exit(128 + signal.SIGTERM)


def environment(slot: int, jobs: int) -> dict[str, str]:
    """Return the environment of a cell's process. Each slot gets one GPU if there are several."""
    found = dict(os.environ)
    devices = visible_gpus()
    if jobs > 1 and devices:
        found["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return found


def visible_gpus() -> list[str]:
    """Return the GPUs that a run may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(count_gpus())]


@cache
def count_gpus() -> int:
    """Count the GPUs of this machine without importing torch, which takes seconds."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last non-empty lines of a file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
