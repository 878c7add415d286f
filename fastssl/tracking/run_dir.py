"""The run folder: what lies where, who may write it, and how files get there whole."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastssl.config.yaml_files import read_yaml
from fastssl.errors import RESUME, ConfigError, DataError, ResourceError, writing
from pipelines.files import Lock, read_json, write_atomic

LOCK = ".lock"
COMPLETE = ("finished", "out of time")  # the `status` of a run that needs no more training
EARLY = {"code", "environment.json", ".environment.json.new", ".config.yaml.new"}


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
        self.probe = path / "probe.json"  # only of a run that `probe` made
        self.code = path / "code"
        self.training = False  # whether this process is training the run
        self._made = False
        self._lock: Lock | None = None

    def started(self) -> bool:
        """Return True if a run has begun here."""
        return self.config.is_file()

    def finished_steps(self) -> int | None:
        """Return the steps of a run that was trained to its end, else None."""
        try:
            summary = read_json(self.summary)
            return int(summary["steps"]) if summary["status"] == "finished" else None
        except (OSError, ValueError, DataError, KeyError, TypeError):
            return None

    def code_copy(self, key: str, sha256: str) -> Path:
        """Return where the user's file of a key is kept; `sha256` is that of its content."""
        return self.code / f"{key}-{sha256[:16]}.py"

    def keep_code(self, key: str, sha256: str, source: bytes) -> None:
        """Copy a user's file into the run, beside an earlier version if there is one."""
        self.code.mkdir(exist_ok=True)
        if not self.code_copy(key, sha256).exists():
            write_atomic(self.code_copy(key, sha256), source)

    def claim(self, resume: bool) -> None:
        """Make the folder ours for the life of this process, or refuse."""
        with writing(self.path, RESUME):
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            # Checked before the lock, which would leave a file among the user's own.
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
            # A missing permission is reported now, and not at the first checkpoint.
            tempfile.TemporaryFile(dir=self.checkpoints).close()

    def _others(self) -> list[Path]:
        return [entry for entry in self.path.iterdir() if not self._leftover(entry)]

    def _leftover(self, entry: Path) -> bool:
        # What a run leaves that ended before its config.yaml was written holds nothing of value.
        if entry == self.checkpoints:
            return not any(entry.iterdir())
        return entry.name == LOCK or (entry.name in EARLY and not self.started())

    def _acquire_lock(self) -> None:
        try:
            self._lock = Lock(self.path / LOCK)
        except BlockingIOError as error:
            raise ConfigError(
                f"another run is writing {self.path} right now",
                "wait for it to end, or take another --out",
            ) from error

    def check_ours(self) -> None:
        """Raise if the folder was deleted and another run has begun under its name."""
        # A lock file that is gone or unreadable is not an error here: the next write reports it.
        if self._lock and self._lock.replaced():
            raise ResourceError(
                f"{self.path} was deleted or moved, and another run has begun in its place",
                "begin this one again with another --out",
            )

    def release(self) -> None:
        """Release the folder; a run that was refused leaves nothing there."""
        if self._lock:
            refused = not self.started()
            if refused:
                with suppress(OSError):
                    self.checkpoints.rmdir()  # only if it is empty
            self._lock.release(remove=refused)
            self._lock = None
            if refused and self._made:
                with suppress(OSError):
                    self.path.rmdir()

    def read_config(self) -> dict[str, Any]:
        """Return the resolved configuration of the run."""
        return read_yaml(self.config, DataError)
