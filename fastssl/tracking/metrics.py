"""metrics.jsonl, TensorBoard and log.txt: what a run writes down as it goes.

A line of metrics is data and its loss stops the run; TensorBoard and the log are comfort:
where they fail, one warning is given and training goes on.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fastssl.errors import cannot_write
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import write_atomic

logger = logging.getLogger(__name__)


class Record:
    """The written record of a run, on rank 0."""

    def __init__(self, folder: RunFolder, tensorboard: bool, step: int) -> None:
        self.folder = folder
        self._warned: set[str] = set()
        trim(folder.metrics, step)
        try:
            self._metrics: IO[str] = folder.metrics.open("a", encoding="utf-8")
        except OSError as error:
            raise cannot_write(folder.metrics, error) from error
        self._board: Any = None
        if tensorboard:
            self.guarded("TensorBoard", lambda: self._open_board(step))

    def _open_board(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        threading.excepthook = tell_of_thread
        # Events past the checkpoint are hidden by TensorBoard itself: purge_step.
        self._board = SummaryWriter(str(self.folder.tensorboard), purge_step=step or None)

    def metrics(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write one line, and every number in it to TensorBoard."""
        self.folder.check_ours()
        try:
            self._metrics.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise cannot_write(self.folder.metrics, error) from error
        for name, value in values.items():
            if isinstance(value, int | float):
                tag = name if "/" in name else f"{kind}/{name}"
                self.board("add_scalar", tag, value, step)

    def board(self, method: str, *arguments: Any, **named: Any) -> None:
        """Call a method of TensorBoard's writer, if there is one."""
        if self._board is not None:
            self.guarded("TensorBoard", lambda: getattr(self._board, method)(*arguments, **named))

    def guarded(self, what: str, action: Any) -> None:
        """Do what a run can go without; where it fails, warn once."""
        try:
            action()
        except Exception as error:
            if what not in self._warned:
                self._warned.add(what)
                logger.warning("%s can't be written (%s); going on", what, error)

    def flush(self) -> None:
        """Bring TensorBoard's events to the disk."""
        self.board("flush")

    def close(self) -> None:
        """Close all files."""
        with suppress(OSError):  # told already, when the line was written
            self._metrics.close()
        self.board("close")
        threading.excepthook = threading.__excepthook__


def tell_of_thread(failure: Any) -> None:
    """Pass TensorBoard's own thread by: its failure is raised again in ours, and told once."""
    if not type(failure.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(failure)


def trim(path: Path, step: int) -> None:
    """Drop the lines past `step` (and a torn last line) before a run goes on from there."""
    if not path.exists():
        return
    try:
        kept = [line for line in read_lines(path) if json.loads(line)["step"] <= step]
        write_atomic(path, "".join(f"{line}\n" for line in kept).encode())
    except OSError as error:
        raise cannot_write(path, error) from error


def read_lines(path: Path) -> list[str]:
    """Return the whole lines of a metrics file; a torn one is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            int(json.loads(line)["step"] + 0)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        found.append(line)
    return found


def read_metrics(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind, as dicts."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in read_lines(path)]
    return [line for line in lines if line.get("kind") == kind]
