"""The metrics of a run: metrics.jsonl, and the same numbers in TensorBoard.

A line of metrics.jsonl that cannot be written stops the run, because the results would be
incomplete. A failure of TensorBoard is only reported, once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fastssl.errors import RESUME, writing
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import write_atomic

LONGEST_LINE = 2**22  # bytes; a line with every table of 20,000 classes takes half of it

logger = logging.getLogger(__name__)


class MetricsLog:
    """Writes the metrics of a run; exists on rank 0 only."""

    def __init__(self, folder: RunFolder, tensorboard: bool, step: int) -> None:
        self.folder = folder
        self._warned: set[str] = set()
        trim(folder.metrics, step)
        with writing(folder.metrics, RESUME):
            self._metrics: IO[str] = folder.metrics.open("a", encoding="utf-8")
        self._writer: Any = None
        self._excepthook: Any = None
        if tensorboard:
            self.guarded("TensorBoard", lambda: self._open_tensorboard(step))

    def _open_tensorboard(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard writes in a thread of its own. An error there is raised again by our next call
        # and reported once; the default hook would print it as a traceback, too.
        self._excepthook = threading.excepthook
        threading.excepthook = self._ignore_writer_thread
        # TensorBoard hides the events after purge_step, which a resumed run writes again.
        self._writer = SummaryWriter(str(self.folder.tensorboard), purge_step=step or None)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write one line to metrics.jsonl, and every number in it to TensorBoard."""
        self.folder.check_ours()
        with writing(self.folder.metrics, RESUME):
            self._metrics.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
            self._metrics.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                tag = name if "/" in name else f"{kind}/{name}"
                self.tensorboard("add_scalar", tag, value, step)

    def tensorboard(self, method: str, *arguments: Any, **named: Any) -> None:
        """Call a method of TensorBoard's SummaryWriter if TensorBoard is on."""
        if self._writer is not None:
            self.guarded("TensorBoard", lambda: getattr(self._writer, method)(*arguments, **named))

    def guarded(self, what: str, action: Any) -> None:
        """Call `action`, which training does not depend on; if it fails, warn once."""
        try:
            action()
        except Exception as error:
            if what not in self._warned:
                self._warned.add(what)
                logger.warning("%s can't be written (%s); going on", what, error)

    def flush(self) -> None:
        """Write TensorBoard's buffered events to the disk."""
        self.tensorboard("flush")

    def close(self) -> None:
        """Close all files."""
        with suppress(OSError):  # reported already, when the line was written
            self._metrics.close()
        self.tensorboard("close")
        if threading.excepthook == self._ignore_writer_thread:  # not if the user set another
            threading.excepthook = self._excepthook

    def _ignore_writer_thread(self, failure: Any) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._excepthook(failure)


def trim(path: Path, step: int) -> None:
    """Remove the lines after `step`, and an incomplete last line, before a run is resumed."""
    if path.exists():
        with writing(path, RESUME):
            kept = [text for text, line in read_lines(path) if line["step"] <= step]
            write_atomic(path, "".join(f"{text}\n" for text in kept).encode())


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the valid lines of a metrics file, as text and parsed.

    A killed run leaves an incomplete last line; damaged lines are skipped wherever they are. Only
    one line is in memory at a time, and of a longer one than a run writes only a part.
    """
    with path.open("rb") as file:
        while data := file.readline(LONGEST_LINE):
            text = data.decode("utf-8", errors="replace").rstrip("\r\n")
            try:
                line = json.loads(text)
                int(line["step"] + 0)  # a number that is finite
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
            yield text, line


def read_metrics(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind, "train" or "eval"; the one reader of metrics.jsonl."""
    lines = read_lines(path) if path.is_file() else ()
    return [line for _, line in lines if line.get("kind") == kind]
