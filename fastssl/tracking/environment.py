"""The machine and software of a run or a measurement: versions, cores, commit."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from fastssl.version import __version__
from pipelines.cpus import available_cpus

PACKAGES = ("torch", "torchvision", "numba", "numpy", "pillow", "ffcv", "nvidia-dali-cuda130")


def describe() -> dict[str, Any]:
    """Return the content of environment.json; it holds no path and no host name."""
    return {
        "fastssl": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": available_cpus(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1m": round(psutil.getloadavg()[0], 2),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that can change results."""
    found = {package: installed_version(package) for package in PACKAGES}
    return {package: number for package, number in found.items() if number}


def installed_version(package: str) -> str:
    """Return the version of a package, or '' if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def commit() -> str:
    """Return the commit of this checkout, with a + if files differ, or '' without one."""
    folder = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    if not (folder / ".git").exists():
        return ""
    mark = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    return git("rev-parse", "--short=12", "HEAD") + mark


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
