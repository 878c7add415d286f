"""Signals: the first asks the run to save and stop, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # a lost terminal; Windows has no such signal
SIGNALS = tuple(one for one in (signal.SIGTERM, signal.SIGINT, HANGUP) if one is not None)
STOPPING = b"stopping after this step, then saving; a second signal stops at once\n"


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a process to stop; SIGHUP is one unless `nohup` ignores it.

    An ignored SIGINT still is: a shell ignores it for every job that a script starts with `&`.
    """
    nohup = HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN
    return [one for one in SIGNALS if not (nohup and one == HANGUP)]


class Stop:
    """A context in which the signals set a flag instead of killing the process.

    Python runs its handlers only between two bytecodes, and a call into a library may take long
    or hang. Restoring SIG_DFL in the first handler would therefore not be enough: that handler
    may never run. So a thread counts the signals through a pipe, and the second one ends the
    process at once.
    """

    def __init__(self, announce: bool = False) -> None:
        self.signal: int = 0
        self.announce = announce  # whether the first signal prints a line on stderr
        self._old: dict[int, Any] = {}
        self._wakeup = self._pipe = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Stop:
        """Handle the signals; outside the main thread Python allows no handlers."""
        if threading.current_thread() is threading.main_thread():
            reading, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            self._thread = threading.Thread(target=self._count, args=[reading], daemon=True)
            self._thread.start()
            self._wakeup = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
            for number in stop_signals():
                self._old[number] = signal.signal(number, self._notice)
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def _count(self, reading: int) -> None:
        came = False
        while byte := os.read(reading, 1):  # the number of a signal
            # When a terminal is lost, both the kernel and the shell may send SIGHUP: the second one
            # is not the user who wants to stop at once.
            if byte[0] in SIGNALS and byte[0] != HANGUP and came:
                os._exit(128 + byte[0])
            if byte[0] in SIGNALS and self.announce:
                with suppress(OSError):  # a terminal that is gone
                    os.write(2, STOPPING)
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
