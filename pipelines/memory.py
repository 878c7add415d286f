"""How much memory this process can use: the machine's, its container's, or a GPU's."""

from __future__ import annotations

from pathlib import Path

# The memory limit of a container, in cgroups version 2 and version 1. Version 1 stores a huge
# number where there is no limit, version 2 the text "max".
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def total_memory() -> int:
    """Return the bytes of the machine's memory, or its container's limit if that is lower."""
    import psutil

    return _limited(psutil.virtual_memory().total)


def free_memory(device: str = "cpu") -> int:
    """Return the free bytes of a GPU, or those of the machine up to its container's limit."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return _limited(psutil.virtual_memory().available)


def _limited(size: int) -> int:
    for file in CGROUP_LIMITS:
        try:
            limit = file.read_text().strip()
        except OSError:  # another version of cgroups, or none
            continue
        size = min(size, int(limit)) if limit.isdigit() else size
    return size
