"""The standard streams: closed ones, lost terminals, and readers that have ended."""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import Any


class ForgivingStream:
    """A text stream that ignores failed writes: no run may fail because its terminal is gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text if that is possible."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def repair_streams() -> None:
    """Make the standard streams of this process usable, whatever it was started with."""
    # A closed stream would give its number to the next file that is opened, which then receives
    # all output of C libraries.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # another file was put into its place
            sys.stdout.reconfigure(errors="backslashreplace")  # names that it cannot encode
    sys.stderr = ForgivingStream(sys.stderr)  # type: ignore[assignment]


def reader_has_ended() -> bool:
    """Return whether stdout is a pipe that nobody reads any more, as that of `head`."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poller = select.poll()
    with suppress(OSError, ValueError):
        poller.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poller.poll(0))


def discard_stdout() -> None:
    """Drop what is still buffered: the interpreter would fail to write it when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
