"""The Linux control groups of this process, which limit its memory and its processor time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def group_folders(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of every group of a controller, from the innermost outward.

    Any of the nested groups may hold the lowest limit. A folder may not exist: in a container the
    path may be the host's, whose upper part is not mounted.
    """
    with suppress(OSError):  # no cgroups on this system
        for line in MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                version, root = 2, CGROUPS
            elif controller in controllers.split(","):
                version, root = 1, CGROUPS / controller
            else:
                continue
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    yield version, folder
