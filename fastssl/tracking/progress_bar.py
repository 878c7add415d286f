"""How far a long piece of work is: a bar on a terminal, now and then a line in a log."""

from __future__ import annotations

import sys
import time
from typing import Any

from fastssl.tracking.console import clock

EVERY = 10.0  # seconds between lines in a log


class Progress:
    """Counts work on stderr, with its rate and the time left; a total of 0 is not known."""

    def __init__(self, total: int, what: str, unit: str = "images", enabled: bool = True) -> None:
        self.total, self.what, self.unit, self.enabled = total, what, unit, enabled
        self.done = 0
        self._bar: Any = None
        self._task: Any = None
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Progress:
        """Show the bar, where there is a terminal."""
        self._began = self._told = time.monotonic()
        if self.enabled and sys.stderr.isatty():
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._task = self._bar.add_task(self.what, total=self.total or None, state="")

    def advance(self, count: int) -> None:
        """Count work that is done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, state=self._state())
        elif self.enabled and time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            self._say()

    def _say(self) -> None:
        print(f"{self.what}: {self._state()}", file=sys.stderr, flush=True)

    def _state(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-9)
        rate = f"{self.done / spent:,.0f} {self.unit}/s"
        if not self.total:
            return f"{self.done:,} {self.unit}, {rate}"
        left = spent / max(self.done, 1) * max(self.total - self.done, 0)
        return f"{self.done:,}/{self.total:,} {self.unit}, {rate}, {clock(left)} left"

    def __exit__(self, kind: object, *error: object) -> None:
        """Take the bar away; a log gets a last line if all went well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self.enabled and kind is None:
            self._say()
