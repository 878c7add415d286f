"""The output of another process, read with a limit."""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import IO, Any, NoReturn

PATIENCE = 600.0  # seconds after which a process counts as hanging, on however busy a machine


class Listener:
    """Reads a pipe that a process writes to; a failure shows all that was read so far.

    The process is killed before a failure is raised. Nobody else may read the pipe.
    """

    def __init__(
        self, process: subprocess.Popen[Any], pipe: IO[Any], patience: float = PATIENCE
    ) -> None:
        self._process, self._pipe, self._patience = process, pipe, patience
        self._heard = b""

    def line(self, start: str) -> str:
        """Read until a whole line begins with `start`; return what was read up to its end."""
        end = time.monotonic() + self._patience
        done = 0  # where the first line begins that was not looked at
        while True:
            while (following := self._heard.find(b"\n", done) + 1) > 0:
                if self._heard.startswith(start.encode(), done):
                    return self._heard[:following].decode()
                done = following
            if not self._read(end):
                self._fail(f"the output ended without a line that begins with {start!r}")

    def end(self) -> str:
        """Read until the pipe is closed and the process has ended; return all that was read."""
        end = time.monotonic() + self._patience
        while self._read(end):
            pass
        self._pipe.close()
        try:
            self._process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._fail("the process has closed its output and goes on")
        return self._heard.decode()

    def _read(self, end: float) -> bool:
        """Read what there is; return False at the end of the output."""
        left = max(0.0, end - time.monotonic())
        if not select.select([self._pipe], [], [], left)[0]:
            self._fail(f"nothing that was waited for came within {self._patience:g} s")
        data = os.read(self._pipe.fileno(), 1 << 16)
        self._heard += data
        return bool(data)

    def _fail(self, why: str) -> NoReturn:
        self._process.kill()
        self._process.wait()
        text = self._heard.decode(errors="replace")
        raise AssertionError(f"{why}; {len(self._heard)} bytes were read:\n{text}")
