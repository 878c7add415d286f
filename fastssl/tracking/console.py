"""The messages of fastssl: the logger "fastssl", its stderr handler and the log file of a run.

Every module logs to `logging.getLogger(__name__)`. Within `messages()` the lines appear on
stderr, unless the logger "fastssl" has a handler of the user's; they are then the user's alone:

    logging.getLogger("fastssl").setLevel(logging.WARNING)  # silences training
    logging.getLogger("fastssl").addHandler(my_handler)     # redirects it

Nothing here may stop a training: a closed terminal or a full disk is ignored or reported once.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipelines.text import for_terminal

LOGGER = logging.getLogger("fastssl")


def text_of(record: logging.LogRecord) -> str:
    """Return the line of a message, which names its level if it is a warning or worse."""
    level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
    return clean_lines(f"{level}{record.getMessage()}")


def clean_lines(text: str) -> str:
    """Return a message whose names cannot command a terminal; line breaks stay."""
    return "\n".join(map(for_terminal, text.split("\n")))


class ConsoleHandler(logging.Handler):
    """Prints messages on stderr, above the progress bar while one is shown."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.bar: Any = None  # the rich progress that is shown, see progress_bar.Bar

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message; a line that the bar shows already is not repeated."""
        with suppress(OSError, ValueError):  # the terminal is gone, or the disk is full
            if self.bar is None:
                print(text_of(record), file=sys.stderr, flush=True)
            elif not getattr(record, "shown_by_bar", False):
                self.bar.console.print(text_of(record), markup=False, highlight=False)


class LogFile(logging.Handler):
    """Appends messages to log.txt, beginning with those from before there was a run folder."""

    def __init__(self) -> None:
        super().__init__()
        self._path: Path | None = None
        self._early: list[str] = []
        self._warned = False

    def open(self, path: Path) -> None:
        """Write the messages so far, and all later ones, to a file."""
        self._path = path
        while self._early:
            self._write(path, self._early.pop(0))

    def emit(self, record: logging.LogRecord) -> None:
        """Append one message with its time."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = f"{when} {text_of(record)}"
        if self._path is None:
            self._early.append(line)
        else:
            self._write(self._path, line)

    def _write(self, path: Path, line: str) -> None:
        try:
            # Opened for each line: no buffer is left that could fail again when it is closed.
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            if not self._warned:
                self._warned = True
                LOGGER.warning("log.txt can't be written (%s); going on", error)


@contextmanager
def messages(*, quiet: bool = False) -> Iterator[None]:
    """Show the messages of the block on stderr, or none if `quiet` (on all ranks but 0).

    A level or handler that the user gave to the logger stays in force.
    """
    level, propagate = LOGGER.level, LOGGER.propagate
    handlers: list[logging.Handler] = [LogFile()]
    if not LOGGER.handlers:
        handlers.append(ConsoleHandler())
        LOGGER.propagate = False  # handlers of the root logger would print every line again
    if quiet:
        LOGGER.setLevel(logging.CRITICAL + 1)
    elif level == logging.NOTSET:
        LOGGER.setLevel(logging.DEBUG)
    for handler in handlers:
        LOGGER.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOGGER.removeHandler(handler)
        LOGGER.propagate = propagate
        LOGGER.setLevel(level)


@contextmanager
def only_progress() -> Iterator[None]:
    """Show no lines but progress and warnings on stderr in the block; log files get all of them."""

    def shown(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or getattr(record, "shown_by_bar", False)

    handlers = [one for one in LOGGER.handlers if isinstance(one, ConsoleHandler)]
    for handler in handlers:
        handler.addFilter(shown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(shown)


def open_log(path: Path) -> None:
    """Write the messages of the surrounding `messages()` block to a file, from the first on."""
    files = [one for one in LOGGER.handlers if isinstance(one, LogFile)]
    if files:
        files[-1].open(path)


def clock(seconds: float) -> str:
    """Return 75 as 1:15 and 3,700 as 1:01:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
