"""How much memory this process can use: the machine's, its container's, or a GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipelines.cgroups import group_folders

# Names of a group's limit, of its use, and of the file pages in it that the kernel can drop: in
# version 2 of cgroups, and in version 1.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class Group(NamedTuple):
    """A control group that limits the memory of this process, in bytes."""

    limit: int
    used: int  # without file pages that the kernel can drop


def total_memory() -> int:
    """Return the bytes of the machine's memory, or its container's limit if that is lower."""
    import psutil

    return min([psutil.virtual_memory().total, *(group.limit for group in limiting_groups())])


def free_memory(device: str = "cpu") -> int:
    """Return the free bytes of a GPU, or those of the machine up to its container's limit."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    left = (max(0, group.limit - group.used) for group in limiting_groups())
    return min([psutil.virtual_memory().available, *left])


def limiting_groups() -> Iterator[Group]:
    """Yield every control group with a limit that this process is in, nested ones included."""
    for version, folder in group_folders("memory"):
        yield from _read(folder, *(VERSION_2 if version == 2 else VERSION_1))


def _read(folder: Path, limit: str, used: str, droppable: str) -> Iterator[Group]:
    with suppress(OSError, ValueError):  # no such group here, or its limit is "max"
        most = int((folder / limit).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield Group(most, int((folder / used).read_text()) - int(stat.get(droppable, 0)))
