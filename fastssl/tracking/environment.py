"""What a run or a measurement ran on: versions, cores, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastssl.version import __version__

PACKAGES = ("torch", "torchvision", "numba", "numpy", "pillow", "ffcv", "nvidia-dali-cuda130")


def facts() -> dict[str, Any]:
    """Return what environment.json holds; no path and no host name of this machine."""
    return {
        "fastssl": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, where they are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Return the commit of the checkout that runs, with a + where files differ, or ''."""
    folder = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    if not (folder / ".git").exists():
        return ""
    mark = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    return git("rev-parse", "--short=12", "HEAD") + mark


def processor() -> str:
    """Return the processor's name as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
