"""SIGTERM and SIGINT: the first asks the run to save and stop, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
TOLD = b"stopping after this step, then saving; a second signal stops at once\n"


class Stop:
    """A context in which the two signals set a flag instead of killing the process.

    Python runs its handlers between two calls into libraries, and such a call may take long or
    hang. So a thread counts the signals, too, and the second one need not wait.
    """

    def __init__(self, tells: bool = False) -> None:
        self.signal: int = 0
        self.tells = tells  # whether the first signal is answered on stderr
        self._old: dict[int, Any] = {}
        self._wakeup = self._pipe = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Stop:
        """Take over both signals; outside the main thread Python allows no handlers."""
        if threading.current_thread() is threading.main_thread():
            reading, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            self._thread = threading.Thread(target=self._count, args=[reading], daemon=True)
            self._thread.start()
            self._wakeup = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._old[number] = signal.signal(number, self._notice)
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def _count(self, reading: int) -> None:
        came = False
        while byte := os.read(reading, 1):  # the number of a signal
            if byte[0] in SIGNALS and came:
                os._exit(128 + byte[0])
            if byte[0] in SIGNALS and self.tells:
                with suppress(OSError):  # a terminal that is gone
                    os.write(2, TOLD)
            came = came or byte[0] in SIGNALS
        os.close(reading)

    def __exit__(self, *what: object) -> None:
        """Give the signals back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        if self._thread:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._pipe)
            self._thread.join()
