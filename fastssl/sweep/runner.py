"""`fastssl sweep`: a grid of runs, each an ordinary run folder trained by a process of its own.

Whatever ends a sweep, the same line goes on with it: done cells are skipped, begun ones resumed.
A cell that fails does not stop the others.
"""

from __future__ import annotations

import fcntl
import json
import os
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

from fastssl.config.resolve import flatten
from fastssl.errors import ConfigError, DataError
from fastssl.sweep import grid
from fastssl.sweep.child_process import die_with_parent, environment, last_lines, locked
from fastssl.sweep.grid import Cell
from fastssl.tracking.console import clock
from fastssl.tracking.run_dir import LOCK, RunFolder, cannot_write, write_json

BOOK = "sweep.json"  # the cells of a sweep and how each ended; `fastssl report` reads it
LOGS = "logs"
POLL = 0.1  # seconds between looks at the running cells
DONE = ("finished", "out of time")


def run(
    file: str,
    *,
    jobs: int = 1,
    dry_run: bool = False,
    only: str | None = None,
    out: str | Path | None = None,
) -> int:
    """Train every cell that is not done; return 0, or the code of the first that failed."""
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}", "type --jobs 1 or more")
    name, cells = grid.read(grid.find_sweep(str(file)))
    chosen = [cell for cell in cells if only is None or matches(cell.name, only)]
    if not chosen:
        raise ConfigError(
            f"no cell of {name} matches {only!r}", f"the first is {cells[0].name!r}; --dry-run"
        )
    folder = Path(out) if out else Path("runs") / name
    if dry_run:
        from fastssl.sweep.estimate import show

        return show(name, chosen, folder, jobs)
    with claimed(folder):
        return Sweep(name, cells, folder, jobs).run(chosen)


def matches(name: str, pattern: str) -> bool:
    """Tell whether a name holds the pattern, or matches it as the shell would."""
    return pattern in name or fnmatch(name, pattern)


def summary(folder: Path) -> dict[str, Any]:
    """Return summary.json of a run, or {} where there is none that can be read."""
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def done(folder: Path, cell: Cell) -> bool:
    """Tell whether a cell has been trained to its end, with the keys it has now."""
    run_folder = RunFolder(folder)
    if summary(folder).get("status") not in DONE or not run_folder.started():
        return False
    try:
        saved = flatten(run_folder.read_config())
    except DataError:  # the process of the cell will say so
        return False
    wanted = flatten(cell.resolved.as_dict())
    return all(saved.get(key) == wanted.get(key) for key in cell.keys)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder for the life of this process, or refuse."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = [entry.name for entry in folder.iterdir() if entry.name != LOCK]
        (folder / LOCK).touch()
    except OSError as error:
        raise cannot_write(folder, error) from error
    with open(folder / LOCK, "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another sweep is at work in {folder}", "wait for it, or take another --out"
            ) from error
        if others and not (folder / BOOK).is_file():
            raise ConfigError(f"{folder} holds files, but no sweep", "take another --out")
        yield


@dataclass(slots=True)
class Job:
    """A cell that is being trained."""

    cell: Cell
    slot: int
    process: subprocess.Popen[bytes]
    began: float


class Sweep:
    """The cells, how each ended, and the processes under way."""

    def __init__(self, name: str, cells: list[Cell], folder: Path, jobs: int) -> None:
        self.name = name
        self.cells = cells
        self.folder = folder
        self.jobs = jobs
        self.exits: dict[str, int] = {}  # of the cells that ended in this sweep
        self.earlier = earlier_exits(folder)
        self.running: list[Job] = []
        self.told = 0  # the signal that asked to stop
        self.started = 0
        self.total = 0

    def run(self, chosen: list[Cell]) -> int:
        """Train what is not done, `jobs` at a time."""
        waiting = [cell for cell in chosen if not done(self.folder / cell.name, cell)]
        skipped = len(chosen) - len(waiting)
        say(f"sweep {self.name}: {len(chosen)} cells, {skipped} done, output in {self.folder}")
        self.total = len(waiting)
        self.write_book()
        with self.signals():
            while (waiting and not self.told) or self.running:
                while waiting and not self.told and len(self.running) < self.jobs:
                    self.start(waiting.pop(0))
                time.sleep(POLL)
                for job in [job for job in self.running if job.process.poll() is not None]:
                    self.running.remove(job)
                    self.end(job)
        return self.close(chosen)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass SIGTERM and SIGINT on to the running cells, which save and stop."""

        def notice(number: int, frame: Any) -> None:
            self.told = number
            for job in self.running:
                job.process.send_signal(number)

        old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            old = {n: signal.signal(n, notice) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def start(self, cell: Cell) -> None:
        """Start the process of a cell; its output goes to logs/CELL.txt."""
        path = self.folder / cell.name
        self.wait_for_orphan(path)
        if self.told:
            return
        slot = next(n for n in range(self.jobs) if n not in [job.slot for job in self.running])
        log = self.folder / LOGS / f"{cell.name}.txt"
        log.parent.mkdir(exist_ok=True)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                train_command(cell, path, self.jobs),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(slot, self.jobs),
                # Ctrl-C in a terminal reaches the whole group: a session of its own leaves the
                # passing on to us, once.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.started += 1
        self.running.append(Job(cell, slot, process, time.monotonic()))
        say(f"[{self.started}/{self.total}] {cell.name}: begins, log in {log}")
        if self.told:  # the signal came between the two lines above
            process.send_signal(self.told)

    def wait_for_orphan(self, path: Path) -> None:
        """Wait until the run of a killed sweep has saved and let go of its folder."""
        if locked(path):
            say(f"{path.name}: its last process is still saving; waiting")
        while locked(path) and not self.told:
            time.sleep(POLL)

    def end(self, job: Job) -> None:
        """Note how a cell ended and tell it in a line."""
        name, code = job.cell.name, job.process.returncode
        code = code if code >= 0 else 128 - code
        spent = clock(time.monotonic() - job.began)
        if self.told and code == 128 + self.told:
            say(f"{name}: saved and stopped after {spent}")
            return
        self.exits[name] = code
        self.write_book()
        if code == 0:
            error = summary(self.folder / name).get("best_error")
            tail = f", best error {error:.2f} %" if isinstance(error, float) else ""
            say(f"{name}: done in {spent}{tail}")
            return
        say(f"{name}: FAILED with exit {code} after {spent}")
        for line in last_lines(self.folder / LOGS / f"{name}.txt", 2):
            say(f"    {line}")

    def close(self, chosen: list[Cell]) -> int:
        """Tell what failed and what to type next; return the exit code."""
        failed = {name: code for name, code in self.exits.items() if code}
        for name, code in failed.items():
            say(f"failed: {name} (exit {code}), log in {self.folder / LOGS / f'{name}.txt'}")
        if self.told:
            say("interrupted and saved; the same line goes on with it")
            return 128 + self.told
        say(f"{len(chosen) - len(failed)} of {len(chosen)} cells are done")
        say(f"next: fastssl report {self.folder} --out {self.folder / 'report.html'}")
        return next(iter(failed.values()), 0)

    def write_book(self) -> None:
        """Write the list of cells, so that a report knows which are missing and which failed."""
        rows = [{"name": c.name, **task(c), "keys": c.keys, **self.ending(c)} for c in self.cells]
        try:
            write_json(self.folder / BOOK, {"name": self.name, "cells": rows})
        except OSError as error:
            raise cannot_write(self.folder / BOOK, error) from error

    def ending(self, cell: Cell) -> dict[str, int]:
        """Return the exit code of a cell, of this sweep or else of one before it."""
        code = self.exits.get(cell.name, self.earlier.get(cell.name))
        return {} if code is None else {"exit": code}


def earlier_exits(folder: Path) -> dict[str, int]:
    """Return how the cells ended that an earlier sweep in this folder has trained."""
    try:
        rows = json.loads((folder / BOOK).read_text(encoding="utf-8"))["cells"]
        return {str(row["name"]): int(row["exit"]) for row in rows if "exit" in row}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # none yet, or not readable: it is written anew


def task(cell: Cell) -> dict[str, Any]:
    """Return what a report sorts cells by."""
    config = cell.resolved.config
    return {"data": config.data, "labels": config.labels, "algorithm": config.algorithm}


def train_command(cell: Cell, path: Path, jobs: int) -> list[str]:
    """Return the line that trains a cell, as one would type it."""
    line = [sys.executable, "-m", "fastssl", "train", cell.config, *train_overrides(cell, jobs)]
    return [*line, "--out", str(path), "--resume"]


def train_overrides(cell: Cell, jobs: int) -> list[str]:
    """Return the keys of a cell, and its share of the cores where several train at a time."""
    words = cell.words()
    if jobs > 1 and "threads" not in cell.keys:
        cores = len(os.sched_getaffinity(0))
        words.append(f"threads={max(1, cores // jobs)}")  # no part of a run's identity
    return words


def say(line: str) -> None:
    """Tell a line of progress."""
    print(line, file=sys.stderr, flush=True)
