"""The errors of both packages under one name, and what turns an OSError into one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import (
    AGAIN,
    ConfigError,
    DataError,
    DivergedError,
    ResourceError,
    UserError,
    system_error,
)

__all__ = [
    "RESUME",
    "ConfigError",
    "DataError",
    "DivergedError",
    "ResourceError",
    "UserError",
    "cannot_write",
    "memory_error",
    "system_error",
    "writing",
]

# What to do if a file of a run folder cannot be written.
RESUME = "free space or permissions there, then add --resume; or take another --out"


def cannot_write(path: Path, error: OSError, fix: str = RESUME) -> ResourceError:
    """Return the error for a file or folder that can't be written."""
    return ResourceError(f"{path} can't be written: {error.strerror or error}", fix)


@contextmanager
def writing(path: Path, fix: str = AGAIN) -> Iterator[None]:
    """Turn an OSError of the block into a ResourceError that names `path`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, fix) from error


def memory_error(error: Exception) -> ResourceError | None:
    """Return the user error for a failure that a limit on memory explains, else None.

    Under such a limit (`ulimit -v`) libraries fail in many ways: an import, a kernel that cannot
    be created, a MemoryError. All of them count if the limit was almost reached.
    """
    limit = _memory_limit()
    if not isinstance(error, MemoryError):
        if limit is None:
            return None
        status = Path("/proc/self/status")
        used = re.search(r"VmPeak:\s*(\d+)", status.read_text() if status.exists() else "")
        almost_reached = used is not None and 1024 * int(used[1]) > limit - 2**30
        if not almost_reached and "failed to map segment" not in str(error):
            return None
    cause = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    within = f" of {limit / 2**30:.1f} GB" if limit is not None else ""
    return ResourceError(
        f"the memory{within} is not enough ({cause})",
        "raise the limit with `ulimit -v unlimited`" if within else "close other programs",
    )


def _memory_limit() -> int | None:
    """Return the limit of `ulimit -v` in bytes, or None if there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit
