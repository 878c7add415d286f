"""Progress of long work: one bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import IO, Any, cast

from fastssl.tracking.console import LOGGER, ConsoleHandler, clock
from fastssl.tracking.streams import ForgivingStream

logger = logging.getLogger(__name__)
EVERY = 10.0  # seconds between two lines if there is no terminal


class Bar:
    """A bar on stderr; hidden without a terminal and while messages are silenced or redirected."""

    def __init__(self) -> None:
        self._handler: ConsoleHandler | None = None
        self._task: Any = None

    def start(self, total: int | None) -> None:
        """Show the bar; a total of None is not known."""
        if not (sys.stderr.isatty() and LOGGER.isEnabledFor(logging.INFO)):
            return
        handlers = [one for one in LOGGER.handlers if isinstance(one, ConsoleHandler)]
        if not handlers:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._handler = handlers[0]
        bar = self._handler.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=Console(file=cast(IO[str], ForgivingStream(sys.stderr))),
        )
        bar.start()
        self._task = bar.add_task("", total=total, text="")

    @property
    def shown(self) -> bool:
        """Return True while the bar is on the terminal."""
        return self._handler is not None

    def update(self, done: int, **fields: Any) -> None:
        """Move the bar; `description` stands on its left, `text` on its right."""
        if self._handler:
            self._handler.bar.update(self._task, completed=done, **fields)

    def stop(self) -> None:
        """Remove the bar."""
        if self._handler:
            self._handler.bar.stop()
            self._handler.bar = None
            self._handler = None


class Progress:
    """Counts work and shows its rate and the time left; a total of 0 is not known."""

    def __init__(self, total: int, what: str, unit: str = "images") -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = 0
        self._bar = Bar()
        self._began = self._logged = time.monotonic()

    def __enter__(self) -> Progress:
        self._began = self._logged = time.monotonic()
        self._bar.start(self.total or None)
        return self

    def advance(self, count: int) -> None:
        """Count work that is done."""
        self.done += count
        if self._bar.shown:
            self._bar.update(self.done, description=self.what, text=self._state())
        elif time.monotonic() - self._logged >= EVERY:
            self._logged = time.monotonic()
            logger.info("%s: %s", self.what, self._state())

    def _state(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-9)
        rate = f"{self.done / spent:,.0f} {self.unit}/s"
        if not self.total:
            return f"{self.done:,} {self.unit}, {rate}"
        left = spent / max(self.done, 1) * max(self.total - self.done, 0)
        return f"{self.done:,}/{self.total:,} {self.unit}, {rate}, {clock(left)} left"

    def __exit__(self, kind: object, *error: object) -> None:
        shown = self._bar.shown
        self._bar.stop()
        if not shown and kind is None:
            logger.info("%s: %s", self.what, self._state())


class Display:
    """The progress of a training: the bar, the lines at log steps, and the time left."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._top1 = ""
        self._bar = Bar()
        self._first, self._began = 0, time.monotonic()

    def start(self, step: int) -> None:
        """Show the bar from `step` on."""
        self._first, self._began = step, time.monotonic()
        self._bar.start(self.steps)
        self._bar.update(step, description=f"{step}/{self.steps}", text="starting")

    def step(self, step: int) -> None:
        """Move the bar to a step."""
        self._bar.update(step, description=f"{step}/{self.steps}")

    def log_metrics(self, step: int, line: dict[str, Any]) -> None:
        """Show the metrics of a log step: beside the bar, and as a line of the log."""
        parts = [f"loss {line['loss']:.4f}"]
        if "trusted" in line:
            parts.append(f"trusted {100 * line['trusted']:.0f} %")
        if line.get("fp16_skipped"):
            parts.append(f"fp16 skipped {line['fp16_skipped']:,}")
        parts += [self._top1] if self._top1 else []
        parts.append(f"{line['speed/images_per_s']:,.0f} images/s")
        parts.append(f"wait {100 * line['speed/data_wait']:.1f} %")
        parts.append(f"left {self._left(step)}")
        text = "  ".join(parts)
        self._bar.update(step, text=text)
        logger.info("step %d/%d  %s", step, self.steps, text, extra={"shown_by_bar": True})

    def log_evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keep the accuracy for the lines to come; the log file alone gets a line."""
        self._top1 = f"top-1 {100 - metrics['error']:.2f} %"
        logger.debug("step %d evaluated: error %.2f %%", step, metrics["error"])

    def _left(self, step: int) -> str:
        # By the pace of this process: steps from before a resume may have run elsewhere.
        done, spent = step - self._first, time.monotonic() - self._began
        return clock(spent / done * (self.steps - step)) if done else "?"

    def stop(self) -> None:
        """Remove the bar."""
        self._bar.stop()
