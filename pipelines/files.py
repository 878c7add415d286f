"""Files that are complete or absent, and locks that end with their process.

Every atomic write, fsync and file lock of the project is here. What a file contains is the
business of the caller.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from pipelines.errors import DataError, ResourceError, system_error

try:
    import fcntl
except ImportError:  # Windows: what needs no lock works there
    fcntl = None  # type: ignore[assignment]

# Some network file systems cannot sync a directory (SMB, FUSE, 9p) or lock a file (Lustre).
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)

MOST_JSON = 16 << 20  # bytes; the largest summary of a run takes a hundredth of it


def sync(path: Path) -> None:
    """Make the content of a file, or the renames in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write a file that is complete or absent, even after a power failure."""
    with _replacing(path) as new:
        new.write_bytes(data)


def write_json(path: Path, content: Any) -> None:
    """Write JSON that is complete or absent."""
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a file; raise DataError if it has more than `limit` bytes."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise DataError(f"{path} is not a file", "restore it from a copy")
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DataError(
            f"{path} is larger than {limit:,} bytes, the most that is read of such a file",
            "check where it comes from, and restore it from a copy",
        )
    return data


def read_json(path: Path, limit: int = MOST_JSON) -> Any:
    """Return what a JSON file contains; raise DataError if it is too large or not JSON."""
    data = read_limited(path, limit)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{path} is not JSON: {why}", "restore it from a copy") from None


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[str]]:
    """Open a text file for writing; it replaces `path` when the block ends without an error.

    A device or a pipe is written directly. File names that are not UTF-8 are written unchanged.
    """
    direct = path.exists() and not path.is_file()
    target = path.resolve()  # a symbolic link stays a link
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            nullcontext(path) if direct else _replacing(target) as new,
            open(new, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename not in (None, str(path), str(_temporary(target))):
            raise  # of the caller's own files
        raise system_error(OSError(error.errno, error.strerror), path) from error


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; what is written there replaces `path`, or is removed on an error."""
    new = _temporary(path)
    try:
        yield new
        sync(new)
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):  # half a file would only fill the disk further
            new.unlink(missing_ok=True)
        raise
    # The rename itself is durable only once the directory is synced.
    sync(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process.

    The kernel drops an flock when its process ends, however it ends. The package filelock is not
    used: where flock is missing it falls back to a file that outlives a killed process, it hides
    the descriptor that `replaced` needs, and it has no shared lock for `is_locked`.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        """Take the lock; raise BlockingIOError if it is held elsewhere and `wait` is False."""
        self.path = path
        self._descriptor = self._acquire(wait)
        while self.replaced(if_missing=True):
            # The previous holder removed the file between our open and our flock: a lock on a
            # file without a name keeps nobody out.
            os.close(self._descriptor)
            self._descriptor = self._acquire(wait)

    def _acquire(self, wait: bool) -> int:
        if fcntl is None:
            raise ResourceError(
                f"{self.path} cannot be locked: this system has no flock",
                "use Linux, macOS, or Linux within Windows (WSL)",
            )
        # Python opens with O_CLOEXEC: a child process does not inherit the lock.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                raise ResourceError(
                    f"{self.path} cannot be locked: {error.strerror}",
                    "use a folder on a file system with file locks, such as a local disk",
                ) from error
            raise
        return descriptor

    def replaced(self, *, if_missing: bool = False) -> bool:
        """Return True if another file has this name now; `if_missing` if there is none."""
        try:
            now = os.stat(self.path)
        except OSError:
            return if_missing
        return not os.path.samestat(now, os.fstat(self._descriptor))

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and with `remove` delete its file first."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock; needs no permission to write."""
    if fcntl is None:
        return False
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or no permission to read it
        return False
    return False
