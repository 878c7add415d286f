"""A folder that is complete or absent: built under a hidden name, then renamed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import ConfigError, DataError, ResourceError
from pipelines.files import Lock, sync

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


@contextmanager
def building(out: Path, *, wait: bool = False) -> Iterator[Path | None]:
    """Yield a hidden folder to build in; it becomes `out`, or is removed after an error.

    One process at a time builds `out`. Another is refused, or with `wait` waits and gets None if
    the folder is there by then. What a killed process left behind is removed first.
    """
    out = out.absolute()
    with _disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(out.parent / f".{out.name}.lock", wait=wait)
    try:
        if wait and _filled(out):
            yield None
            return
        refuse_filled(out)
        partial = out.parent / f".{out.name}.partial"
        with _disk(out):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
        try:
            with _disk(out):
                yield partial
                sync(partial)
                os.rename(partial, out)
                sync(out.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        lock.release(remove=True)


def refuse_filled(out: Path) -> None:
    """Refuse a destination that is a file or a non-empty folder."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder", "give another OUT")
    if _filled(out):
        raise ConfigError(
            f"{out} is not empty, and nothing is overwritten",
            f"give another OUT, or remove it first: rm -r {out}",
        )


def _filled(out: Path) -> bool:
    return out.is_dir() and any(out.iterdir())


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """Turn an OSError into an error that names what to do."""
    try:
        yield
    except BlockingIOError:  # the lock
        raise ConfigError(
            f"another process is writing {out}", "wait for it, or give another OUT"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ResourceError(
                f"no room to write {out}: {error.strerror}",
                "free some space, or give an OUT on another disk",
            ) from error
        file = Path(os.fsdecode(error.filename or out))
        if error.errno in _REFUSED and file.is_relative_to(out.parent):
            raise ResourceError(
                f"{out} cannot be written: {error.strerror}", "give an OUT you may write to"
            ) from error
        if error.errno in _REFUSED:
            raise DataError(
                f"{file} cannot be read: {error.strerror}", "look at its permissions"
            ) from error
        raise
