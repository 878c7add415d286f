"""SIGTERM and SIGINT: the first asks the run to save and stop, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stop:
    """A context in which the two signals set a flag instead of killing the process."""

    def __init__(self) -> None:
        self.signal: int = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        """Take over both signals; outside the main thread Python allows no handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._notice)
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number

    def __exit__(self, *what: object) -> None:
        """Give the signals back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
