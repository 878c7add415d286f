"""What a person sees of a run: six lines at the start, a bar or plain lines, a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Display:
    """Progress on stderr: a bar on a terminal, plain lines in a log, nothing on other ranks."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self.steps = steps
        self.quiet = quiet
        self._early: list[str] = []  # what was said before there was a log
        self._log: Callable[[str], None] | None = None
        self.top1 = ""
        self.began = time.monotonic()
        self.first: int | None = None
        self._bar: Any = None
        self._task: Any = None

    def keep(self, log: Callable[[str], None]) -> None:
        """Send every line to log.txt too, beginning with those said so far."""
        for line in self._early:
            log(line)
        self._log = log

    def log(self, line: str) -> None:
        """Write a line into the log alone."""
        if self._log:
            self._log(line)
        elif not self.quiet:
            self._early.append(line)

    def say(self, line: str) -> None:
        """Print a line and keep it in the log."""
        self.log(line)
        if self.quiet:
            return
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            tell(line)

    def begin(self, step: int) -> None:
        """Start the bar, where there is a terminal."""
        self.first, self.began = step, time.monotonic()
        if self.quiet or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._task = self._bar.add_task("starting", total=self.steps, completed=step)

    def step(self, step: int) -> None:
        """Move the bar on."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def logged(self, step: int, line: dict[str, Any]) -> None:
        """Tell the metrics of a log step."""
        words = [f"loss {line['loss']:.4f}"]
        if "trusted" in line:
            words.append(f"trusted {100 * line['trusted']:.0f} %")
        if line.get("fp16_skipped"):
            words.append(f"fp16 skipped {line['fp16_skipped']:,}")
        words += [self.top1] if self.top1 else []
        words.append(f"{line['speed/images_per_s']:,.0f} images/s")
        words.append(f"wait {100 * line['speed/data_wait']:.1f} %")
        words.append(f"left {self.left(step)}")
        text = "  ".join(words)
        self.log(f"step {step}/{self.steps}  {text}")
        if self._bar:
            self._bar.update(self._task, description=text)
        elif not self.quiet:
            tell(f"step {step}/{self.steps}  {text}")

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Remember the accuracy for the lines to come."""
        self.top1 = f"top-1 {100 - figures['error']:.2f} %"
        self.log(f"step {step} evaluated: error {figures['error']:.2f} %")

    def left(self, step: int) -> str:
        """Return the time left, by the pace since the start of this process."""
        done = step - (self.first or 0)
        spent = time.monotonic() - self.began
        return clock(spent / done * (self.steps - step)) if done else "?"

    def end(self) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()
            self._bar = None


def tell(line: str) -> None:
    """Print a line on stderr; a terminal that has gone, or a full disk, stops no training."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Return 75 as 1:15 and 3,700 as 1:01:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
