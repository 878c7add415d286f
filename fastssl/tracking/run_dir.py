"""The run folder: what lies where, who may write it, and how files get there whole."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from fastssl.errors import ConfigError, DataError, ResourceError, cannot_write, system_error

LOCK = ".lock"
EARLY = {"environment.json", ".environment.json.new", ".config.yaml.new"}


class RunFolder:
    """A folder of one run; never deleted or overwritten by us."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.log = path / "log.txt"
        self._lock: IO[str] | None = None

    def started(self) -> bool:
        """Tell whether a run has begun here."""
        return self.config.is_file()

    def finished(self) -> bool:
        """Tell whether the summary of a whole run is here."""
        try:
            return bool(json.loads(self.summary.read_bytes())["status"] == "finished")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def claim(self, resume: bool) -> None:
        """Make the folder ours for the life of this process, or refuse."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Looked at before the lock, which would leave a file in somebody's pictures.
            if self._others() and not self.started():
                raise ConfigError(
                    f"{self.path} holds files, but no run of fastssl", "take another --out"
                )
            self._acquire_lock()
            if self._others() and not resume:
                raise ConfigError(
                    f"{self.path} is not empty",
                    "add --resume to go on with it, or take another --out",
                )
            self.checkpoints.mkdir(exist_ok=True)
            # Who may not write there learns it now, and not at the first checkpoint.
            tempfile.TemporaryFile(dir=self.checkpoints).close()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _others(self) -> list[Path]:
        return [entry for entry in self.path.iterdir() if not self._leftover(entry)]

    def _leftover(self, entry: Path) -> bool:
        # What a run leaves that ended before its config.yaml was written holds nothing of value.
        if entry == self.checkpoints:
            return not any(entry.iterdir())
        return entry.name == LOCK or (entry.name in EARLY and not self.started())

    def _acquire_lock(self) -> None:
        # The kernel drops this lock when the process ends, however it ends.
        self._lock = open(self.path / LOCK, "a", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            self._lock = None
            raise ConfigError(
                f"another run is writing {self.path} right now",
                "wait for it to end, or take another --out",
            ) from error

    def check_ours(self) -> None:
        """Raise where the folder was deleted and another run has begun under its name."""
        if not self._lock:
            return
        try:
            now = os.stat(self.path / LOCK)
        except OSError:  # gone or unreadable: writing tells that
            return
        if not os.path.samestat(now, os.fstat(self._lock.fileno())):
            raise ResourceError(
                f"{self.path} was deleted or moved, and another run has begun in its place",
                "begin this one again with another --out",
            )

    def release(self) -> None:
        """Let others have the folder."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def read_config(self) -> dict[str, Any]:
        """Return the resolved configuration of the run."""
        try:
            found = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path} holds no readable config.yaml", "give the folder of a run"
            ) from error
        if not isinstance(found, dict):
            raise DataError(f"{self.config} is damaged", "give the folder of another run")
        return found


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is there whole or not at all, even after a power cut."""
    new = path.with_name(f".{path.name}.new")
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with suppress(OSError):  # half a file on a full disk is in everybody's way
            new.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[str]]:
    """Open a text file to be written bit by bit; it takes its place when all of it is there.

    A device or a pipe is written as it is. A name that is not UTF-8 goes out as it came in.
    """
    plain = path.exists() and not path.is_file()
    target = path.resolve()  # a link stays one
    new = path if plain else target.with_name(f".{target.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(new, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
            file.flush()
            if not plain:
                os.fsync(file.fileno())
        if not plain:
            os.replace(new, target)
            sync(target.parent)
    except BaseException as error:
        if not plain:
            with suppress(OSError):
                new.unlink(missing_ok=True)
        own = isinstance(error, OSError) and error.filename in (None, str(new))
        if isinstance(error, OSError) and own and not isinstance(error, BrokenPipeError):
            raise system_error(OSError(error.errno, error.strerror), path) from error
        raise


def sync(path: Path) -> None:
    """Make what was written to a file, or the renames in a folder, durable."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_json(path: Path, content: Any) -> None:
    """Write JSON whole or not at all."""
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())
