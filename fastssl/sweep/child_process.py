"""The processes of a sweep: what they inherit, and what they leave behind."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
from functools import cache
from pathlib import Path

from fastssl.tracking.run_dir import LOCK

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the sweep is killed: the run saves and stops.

    Runs in the new process; where there is no such call (not Linux) nothing happens.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(slot: int, jobs: int) -> dict[str, str]:
    """Return the environment of a process; of several GPUs each slot gets its own."""
    found = dict(os.environ)
    devices = gpus()
    if jobs > 1 and devices:
        found["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return found


def gpus() -> list[str]:
    """Return the GPUs that a run may see, by the names CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(count_gpus())]


@cache
def count_gpus() -> int:
    """Count the GPUs of this machine without loading torch."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def locked(folder: Path) -> bool:
    """Tell whether a process is writing a run folder right now; asks for no right to write."""
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock, or one that is not for us to read
        return False
    return False


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file that are not empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
