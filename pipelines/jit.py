"""Machine code that numba compiles once and keeps on disk for the next start."""

# mypy: disable-error-code="import-untyped"
from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba

logger = logging.getLogger(__name__)


def njit_cached(signature: Any, **options: Any) -> Callable[[Any], Any]:
    """Compile a function for one signature with numba, and cache the result on disk.

    Numba writes beside the source or below the user's home. Where it can write to neither (a
    shared installation, a container's user without a home), a private temporary folder is used,
    and if that is not possible either, the function is compiled at every start.
    """

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # no folder for the cache, or its disk is full
            folder = private_folder()
        if folder is None:
            return numba.njit(signature, **options)(function)
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, folder
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):
            return numba.njit(signature, **options)(function)
        finally:
            numba.config.CACHE_DIR = before

    return decorate


@cache
def private_folder() -> str | None:
    """Return a temporary folder that only this user can write to, or None; log which, once."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"fastssl-numba-{user}"
    hint = "set NUMBA_CACHE_DIR to a folder that can be written to"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        # Cached code is executed, so nobody else may have put it there.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o77:
            logger.warning(f"compiled code is kept in {folder}; to keep it elsewhere, {hint}")
            return str(folder)
    except OSError:
        pass
    logger.warning(f"compiled code can't be kept, so every start compiles for seconds: {hint}")
    return None


def stamp(*paths: Path) -> str:
    """Return a hash of files whose code is compiled into a cached function of another file.

    Numba's cache checks the date of the function's own file alone. But the values that a function
    closes over are part of the key of its cached code, so it must close over this stamp.
    """
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
