"""`fastssl sweep`: trains the cells of a grid, each in an ordinary run folder.

After any interruption the same command continues: done cells are skipped, begun ones resumed. A
cell that fails does not stop the others.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from fastssl.engine.signals import stop_signals
from fastssl.errors import RESUME, ConfigError, cannot_write, writing
from fastssl.sweep import cell_state, grid
from fastssl.sweep.cell_state import SWEEP_FILE, SweepCell, is_locked
from fastssl.sweep.child_process import die_with_parent, environment, last_lines, train_command
from fastssl.sweep.estimate import print_estimate
from fastssl.sweep.grid import Cell
from fastssl.tracking.console import clock, messages
from fastssl.tracking.run_dir import LOCK
from pipelines.files import Lock, write_json

logger = logging.getLogger(__name__)
LOGS = "logs"
POLL = 0.1  # seconds between two looks at the running cells


def run(
    file: str,
    *,
    jobs: int = 1,
    dry_run: bool = False,
    only: str | None = None,
    out: str | Path | None = None,
    trust_code: bool = False,
    rerun_changed: bool = False,
) -> int:
    """Train every cell that is not done; return 0 or the exit code of the first that failed."""
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}", "type --jobs 1 or more")
    name, cells = grid.read(grid.find_sweep(str(file)), trust_code=trust_code)
    chosen = [cell for cell in cells if only is None or matches(cell.name, only)]
    if not chosen:
        raise ConfigError(
            f"no cell of {name} matches {only!r}",
            f"the first cell is {cells[0].name!r}; --dry-run prints all",
        )
    folder = Path(out) if out else Path("runs") / name
    located = locate(chosen, folder, rerun_changed)
    cells = [located.get(cell.name, cell) for cell in cells]
    chosen = list(located.values())
    if dry_run:
        print_estimate(name, chosen, folder, jobs)
        return 0
    with claimed(folder), messages():
        earlier = {cell.name: cell.exit for cell in cell_state.read_cells(folder)}
        return Sweep(name, cells, folder, jobs, earlier).run(chosen)


def locate(cells: list[Cell], folder: Path, rerun_changed: bool) -> dict[str, Cell]:
    """Return the cells under the names of their folders, by the names in the sweep's file.

    A cell that was trained with other settings is refused, or gets a new folder NAME~2, NAME~3, …
    (no sweep's file can give a cell such a name).
    """
    located, changed = {}, []
    for cell in cells:
        names = chain([cell.name], (f"{cell.name}~{n}" for n in count(2)))
        found: list[str] = []  # what has changed since the last folder of the cell
        for name in names:
            before, found = found, cell_state.changes(folder / name, cell)
            if not found:
                break
        located[cell.name] = replace(cell, name=name)
        if before and not (folder / name).exists():
            changed.append(f"\n    {cell.name}: {', '.join(before)}")
    if changed and not rerun_changed:
        raise ConfigError(
            f"{folder} has cells that were trained with other settings:{''.join(changed)}",
            "restore the settings, take another --out, or add --rerun-changed, which trains "
            "these cells again in new folders",
        )
    return located


def matches(name: str, pattern: str) -> bool:
    """Return True if a name contains the pattern or matches it as a shell pattern."""
    return pattern in name or fnmatch(name, pattern)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep's folder; refuse a folder that is in use or not a sweep's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = any(entry.name != LOCK for entry in folder.iterdir())
        # Looked at before the lock, which would leave a file in a folder that is not ours.
        if others and not (folder / SWEEP_FILE).is_file():
            raise ConfigError(f"{folder} holds files, but no sweep", "take another --out")
        lock = Lock(folder / LOCK)
    except BlockingIOError as error:
        raise ConfigError(
            f"another sweep is using {folder}", "wait for it to end, or take another --out"
        ) from error
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()


@dataclass(slots=True)
class Job:
    """A cell that is being trained."""

    cell: Cell
    process: subprocess.Popen[bytes]
    began: float


@dataclass(slots=True)
class Sweep:
    """The cells, their exit codes, and the processes that are running."""

    name: str
    cells: list[Cell]
    folder: Path
    jobs: int
    exit_codes: dict[str, int | None]  # of earlier sweeps in this folder, and of this one
    failed: dict[str, int] = field(default_factory=dict)  # cells that failed this time
    running: dict[int, Job] = field(default_factory=dict)  # by slot, of which there are `jobs`
    stop_signal: int = 0  # the number of the signal that asked to stop

    def run(self, chosen: list[Cell]) -> int:
        """Train the cells that are not done, `jobs` at a time; return the exit code."""
        waiting = [cell for cell in chosen if not cell_state.is_done(self.folder / cell.name)]
        total, skipped = len(waiting), len(chosen) - len(waiting)
        logger.info(
            f"sweep {self.name}: {len(chosen)} cells, {skipped} done, output in {self.folder}"
        )
        self.write_sweep_file()
        with self.signals():
            while (waiting and not self.stop_signal) or self.running:
                while waiting and not self.stop_signal and len(self.running) < self.jobs:
                    self.start(waiting.pop(0), f"[{total - len(waiting)}/{total}]")
                time.sleep(POLL)
                for slot, job in list(self.running.items()):
                    if job.process.poll() is not None:
                        del self.running[slot]
                        self.end(job)
        return self.finish(chosen)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass the signals to stop on to the running cells, which save and stop."""

        def pass_on(number: int, frame: Any) -> None:
            self.stop_signal = number
            for job in self.running.values():
                job.process.send_signal(number)

        old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            old = {n: signal.signal(n, pass_on) for n in stop_signals()}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def start(self, cell: Cell, count: str) -> None:
        """Start the process of a cell; its output goes to logs/CELL.txt."""
        path = self.folder / cell.name
        self.wait_for_orphan(path)
        if self.stop_signal:
            return
        slot = min(set(range(self.jobs)) - self.running.keys())
        text = self.log_file(cell.name)
        text.parent.mkdir(exist_ok=True)
        with open(text, "ab") as file:
            process = subprocess.Popen(
                train_command(cell, self.jobs, "--out", str(path), "--resume"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(slot, self.jobs),
                # Ctrl-C in a terminal reaches the whole process group. In a session of its own
                # a cell gets the signal once, from us.
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        self.running[slot] = Job(cell, process, time.monotonic())
        logger.info(f"{count} {cell.name}: begins, log in {text}")
        if self.stop_signal:  # it arrived before the job was in the list
            process.send_signal(self.stop_signal)

    def wait_for_orphan(self, path: Path) -> None:
        """Wait until the process of a killed sweep has saved and released its run folder."""
        if is_locked(path):
            logger.info(f"{path.name}: its last process is still saving; waiting")
        while is_locked(path) and not self.stop_signal:
            time.sleep(POLL)

    def end(self, job: Job) -> None:
        """Record the exit code of a cell and print one line about it."""
        name, code = job.cell.name, job.process.returncode
        code = code if code >= 0 else 128 - code  # Popen returns -N for signal N
        spent = clock(time.monotonic() - job.began)
        if self.stop_signal and code == 128 + self.stop_signal:
            logger.info(f"{name}: saved and stopped after {spent}")
            return
        self.exit_codes[name] = code
        self.write_sweep_file()
        if code == 0:
            summary = cell_state.read_summary(self.folder / name)
            error = summary.get("best_error")
            tail = f", best error {error:.2f} %" if isinstance(error, float) else ""
            late = summary.get("status") == "out of time"  # max_time has ended it before its steps
            logger.info(f"{name}: {'out of time after' if late else 'done in'} {spent}{tail}")
            return
        self.failed[name] = code
        logger.info(f"{name}: FAILED with exit {code} after {spent}")
        for line in last_lines(self.log_file(name), 2):
            logger.info(f"    {line}")

    def finish(self, chosen: list[Cell]) -> int:
        """Print what failed and the next command; return the exit code."""
        for name, code in self.failed.items():
            logger.info(f"failed: {name} (exit {code}), log in {self.log_file(name)}")
        if self.stop_signal:
            logger.info("interrupted and saved; type the same command to continue")
            return 128 + self.stop_signal
        logger.info(f"{len(chosen) - len(self.failed)} of {len(chosen)} cells are done")
        report = ["fastssl", "report", str(self.folder), "--out", str(self.folder / "report.html")]
        logger.info(f"next: {shlex.join(report)}")
        return next(iter(self.failed.values()), 0)

    def log_file(self, name: str) -> Path:
        """Return the file that holds the output of a cell's process."""
        return self.folder / LOGS / f"{name}.txt"

    def write_sweep_file(self) -> None:
        """Write the list of cells, so that a report knows which are missing and which failed."""
        cells = []
        for cell in self.cells:
            config = cell.resolved.config
            task = {"data": config.data, "labels": config.labels, "algorithm": config.algorithm}
            code = self.exit_codes.get(cell.name)
            row = SweepCell(name=cell.name, **task, keys=cell.keys, exit=code)
            cells.append(row.model_dump(exclude_none=True))
        with writing(self.folder / SWEEP_FILE, RESUME):
            write_json(self.folder / SWEEP_FILE, {"name": self.name, "cells": cells})
