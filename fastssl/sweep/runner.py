"""`fastssl sweep`: trains the cells of a grid, each in an ordinary run folder.

After any interruption the same command continues: done cells are skipped, begun ones resumed. A
cell that fails does not stop the others.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fastssl.errors import ConfigError, cannot_write
from fastssl.sweep import grid
from fastssl.sweep.cell_state import SWEEP_FILE, is_done, is_locked, read_json, read_summary
from fastssl.sweep.child_process import die_with_parent, environment, last_lines, train_command
from fastssl.sweep.estimate import print_estimate
from fastssl.sweep.grid import Cell
from fastssl.tracking.console import clock
from fastssl.tracking.run_dir import LOCK
from pipelines.files import Lock, write_json

LOGS = "logs"
POLL = 0.1  # seconds between two looks at the running cells


def run(
    file: str,
    *,
    jobs: int = 1,
    dry_run: bool = False,
    only: str | None = None,
    out: str | Path | None = None,
) -> int:
    """Train every cell that is not done; return 0 or the exit code of the first that failed."""
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}", "type --jobs 1 or more")
    name, cells = grid.read(grid.find_sweep(str(file)))
    chosen = [cell for cell in cells if only is None or matches(cell.name, only)]
    if not chosen:
        raise ConfigError(
            f"no cell of {name} matches {only!r}",
            f"the first cell is {cells[0].name!r}; --dry-run prints all",
        )
    folder = Path(out) if out else Path("runs") / name
    if dry_run:
        print_estimate(name, chosen, folder, jobs)
        return 0
    with claimed(folder):
        return Sweep(name, cells, folder, jobs).run(chosen)


def matches(name: str, pattern: str) -> bool:
    """Return True if a name contains the pattern or matches it as a shell pattern."""
    return pattern in name or fnmatch(name, pattern)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep's folder; refuse a folder that is in use or not a sweep's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = [entry.name for entry in folder.iterdir() if entry.name != LOCK]
        lock = Lock(folder / LOCK)
    except BlockingIOError as error:
        raise ConfigError(
            f"another sweep is using {folder}", "wait for it to end, or take another --out"
        ) from error
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        if others and not (folder / SWEEP_FILE).is_file():
            raise ConfigError(f"{folder} holds files, but no sweep", "take another --out")
        yield
    finally:
        lock.release()


@dataclass(slots=True)
class Job:
    """A cell that is being trained."""

    cell: Cell
    slot: int
    process: subprocess.Popen[bytes]
    began: float


class Sweep:
    """The cells, their exit codes, and the processes that are running."""

    def __init__(self, name: str, cells: list[Cell], folder: Path, jobs: int) -> None:
        self.name = name
        self.cells = cells
        self.folder = folder
        self.jobs = jobs
        self.earlier = earlier_exit_codes(folder)
        self.exit_codes: dict[str, int] = {}  # of the cells that ended in this sweep
        self.running: list[Job] = []
        self.stop_signal = 0  # the number of the signal that asked to stop

    def run(self, chosen: list[Cell]) -> int:
        """Train the cells that are not done, `jobs` at a time; return the exit code."""
        waiting = [cell for cell in chosen if not is_done(self.folder / cell.name, cell)]
        total, skipped = len(waiting), len(chosen) - len(waiting)
        log(f"sweep {self.name}: {len(chosen)} cells, {skipped} done, output in {self.folder}")
        self.write_sweep_file()
        with self.signals():
            while (waiting and not self.stop_signal) or self.running:
                while waiting and not self.stop_signal and len(self.running) < self.jobs:
                    self.start(waiting.pop(0), f"[{total - len(waiting)}/{total}]")
                time.sleep(POLL)
                for job in [job for job in self.running if job.process.poll() is not None]:
                    self.running.remove(job)
                    self.end(job)
        return self.finish(chosen)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass SIGTERM and SIGINT on to the running cells, which save and stop."""

        def pass_on(number: int, frame: Any) -> None:
            self.stop_signal = number
            for job in self.running:
                job.process.send_signal(number)

        old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            old = {n: signal.signal(n, pass_on) for n in (signal.SIGTERM, signal.SIGINT)}
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
        slot = min(set(range(self.jobs)) - {job.slot for job in self.running})
        text = self.log_file(cell.name)
        text.parent.mkdir(exist_ok=True)
        with open(text, "ab") as file:
            process = subprocess.Popen(
                train_command(cell, path, self.jobs),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(slot, self.jobs),
                # Ctrl-C in a terminal reaches the whole process group. In a session of its own
                # a cell gets the signal once, from us.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.running.append(Job(cell, slot, process, time.monotonic()))
        log(f"{count} {cell.name}: begins, log in {text}")
        if self.stop_signal:  # it arrived before the job was in the list
            process.send_signal(self.stop_signal)

    def wait_for_orphan(self, path: Path) -> None:
        """Wait until the process of a killed sweep has saved and released its run folder."""
        if is_locked(path):
            log(f"{path.name}: its last process is still saving; waiting")
        while is_locked(path) and not self.stop_signal:
            time.sleep(POLL)

    def end(self, job: Job) -> None:
        """Record the exit code of a cell and print one line about it."""
        name, code = job.cell.name, job.process.returncode
        code = code if code >= 0 else 128 - code  # Popen returns -N for signal N
        spent = clock(time.monotonic() - job.began)
        if self.stop_signal and code == 128 + self.stop_signal:
            log(f"{name}: saved and stopped after {spent}")
            return
        self.exit_codes[name] = code
        self.write_sweep_file()
        if code == 0:
            error = read_summary(self.folder / name).get("best_error")
            tail = f", best error {error:.2f} %" if isinstance(error, float) else ""
            log(f"{name}: done in {spent}{tail}")
            return
        log(f"{name}: FAILED with exit {code} after {spent}")
        for line in last_lines(self.log_file(name), 2):
            log(f"    {line}")

    def finish(self, chosen: list[Cell]) -> int:
        """Print what failed and the next command; return the exit code."""
        failed = {name: code for name, code in self.exit_codes.items() if code}
        for name, code in failed.items():
            log(f"failed: {name} (exit {code}), log in {self.log_file(name)}")
        if self.stop_signal:
            log("interrupted and saved; type the same command to continue")
            return 128 + self.stop_signal
        log(f"{len(chosen) - len(failed)} of {len(chosen)} cells are done")
        log(f"next: fastssl report {self.folder} --out {self.folder / 'report.html'}")
        return next(iter(failed.values()), 0)

    def log_file(self, name: str) -> Path:
        """Return the file that holds the output of a cell's process."""
        return self.folder / LOGS / f"{name}.txt"

    def write_sweep_file(self) -> None:
        """Write the list of cells, so that a report knows which are missing and which failed."""
        rows = []
        for cell in self.cells:
            config = cell.resolved.config
            task = {"data": config.data, "labels": config.labels, "algorithm": config.algorithm}
            code = self.exit_codes.get(cell.name, self.earlier.get(cell.name))
            ending = {} if code is None else {"exit": code}
            rows.append({"name": cell.name, **task, "keys": cell.keys, **ending})
        try:
            write_json(self.folder / SWEEP_FILE, {"name": self.name, "cells": rows})
        except OSError as error:
            raise cannot_write(self.folder / SWEEP_FILE, error) from error


def earlier_exit_codes(folder: Path) -> dict[str, int]:
    """Return the exit codes of the cells that an earlier sweep in this folder has trained."""
    try:
        rows = read_json(folder / SWEEP_FILE)["cells"]
        return {str(row["name"]): int(row["exit"]) for row in rows if "exit" in row}
    except (ValueError, TypeError, KeyError):
        return {}  # there is none, or it is damaged and will be written anew


def log(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
