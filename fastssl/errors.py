"""The errors of both packages under one name, and what turns an OSError into one of them."""

from __future__ import annotations

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
    "ConfigError",
    "DataError",
    "DivergedError",
    "ResourceError",
    "UserError",
    "cannot_write",
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
