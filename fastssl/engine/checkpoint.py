"""Checkpoints: sealed, written beside training, loaded without running code.

A file is one line (a magic string, the SHA-256 of the rest, its length) and torch's own format
after it. The newest file whose seal holds is loaded; a damaged one is named and skipped.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from fastssl.errors import DataError, cannot_write
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import sync, write_atomic

MAGIC = b"fastssl-checkpoint-1"
BEST = "best.ckpt"
KEEP = 2
NAME = re.compile(r"step-(\d{8,})\.ckpt")
ROOM = 128  # bytes left free for the line before the body, which is known only after it


class Preprocessing(TypedDict):
    """How an image becomes an input of the model."""

    size: list[int]  # height and width of the model's input
    mean: list[float]
    std: list[float]
    stored: int  # height of the store's test images
    resize: str


class CheckpointContent(TypedDict):
    """The content of a checkpoint file; the keys are those of version 0.1.0."""

    model: dict[str, Tensor]
    ema: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Tensor]
    state: dict[str, Tensor]  # the algorithm's
    quality: Tensor  # pseudo-label counts since the last log step, mean over ranks
    trip: dict[str, Any]  # fields of TrainingProgress
    config: dict[str, Any]
    store: str  # fingerprint
    classes: list[str]
    preprocessing: Preprocessing


def seal(content: CheckpointContent) -> memoryview:
    """Return the bytes of a checkpoint file; they are in memory once, however large they are."""
    buffer = io.BytesIO()
    buffer.write(bytes(ROOM))
    torch.save(content, buffer)
    whole = buffer.getbuffer()
    body = whole[ROOM:]
    head = b"%s %s %d\n" % (MAGIC, hashlib.sha256(body).hexdigest().encode(), len(body))
    begin = ROOM - len(head)
    whole[begin:ROOM] = head
    return whole[begin:]


def unseal(data: bytes, name: str) -> CheckpointContent:
    """Check the seal and return what is inside; never executes code of the file."""
    head, _, body = data.partition(b"\n")
    fields = head.split(b" ")
    whole = (
        len(fields) == 3
        and fields[0] == MAGIC
        and fields[2] == b"%d" % len(body)
        and fields[1] == hashlib.sha256(body).hexdigest().encode()
    )
    if not whole:
        raise DataError(f"{name} is damaged: its checksum does not hold", "use an older checkpoint")
    found: CheckpointContent = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    return found


def read(path: Path) -> CheckpointContent:
    """Read one checkpoint file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}", "check the path") from error
    try:
        return unseal(data, str(path))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a foreign file may fail in torch's reader with any exception
        why = "its seal holds, but what is inside is not of fastssl"
        raise DataError(f"{path} is refused: {why}", "use a checkpoint of your own") from error


def files(folder: RunFolder) -> list[Path]:
    """Return the checkpoints by step, newest first; links are not ours and are left alone."""
    if not folder.checkpoints.is_dir():
        return []
    found = [p for p in folder.checkpoints.iterdir() if NAME.fullmatch(p.name)]
    return sorted((p for p in found if not p.is_symlink()), key=step_of, reverse=True)


def newest(folder: RunFolder, report: Callable[[str], None]) -> CheckpointContent | None:
    """Load the newest valid checkpoint, reporting the damaged ones that are skipped.

    None where there is none at all; an error where there are some and none is valid.
    """
    found = files(folder)
    for path in found:
        try:
            return read(path)
        except DataError as error:
            report(f"skipped: {error.what}")
    if found:
        raise DataError(
            f"no checkpoint in {folder.checkpoints} is valid",
            "start anew with another --out; no checkpoint was changed",
        )
    return None


def best(folder: RunFolder) -> CheckpointContent:
    """Load the best checkpoint of a run."""
    return read(folder.checkpoints / BEST)


class Writer:
    """Writes checkpoints in a thread of its own, so that training does not wait for the disk.

    `begun` is the step that the run goes on from: files of later steps were skipped as damaged.
    """

    def __init__(self, folder: RunFolder, begun: int | None = None) -> None:
        self.folder = folder
        found = files(folder) if begun is not None else []
        self._damaged = {path for path in found if step_of(path) > (begun or 0)}
        self.seconds = 0.0  # what saving took from the training thread
        self._jobs: dict[str, CheckpointContent] = {}
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._failure: BaseException | None = None
        if not folder.checkpoints.is_symlink():
            for path in folder.checkpoints.glob(".*.ckpt.new"):  # what a killed run was writing
                path.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    def save(self, name: str, content: CheckpointContent) -> None:
        """Hand a snapshot over; one of its kind that still waits is replaced.

        So no more than two wait, the last and the best, however slow the disk is.
        """
        periodic = NAME.fullmatch(name)
        with self._changed:
            self._raise()
            waiting = {other for other in self._jobs if periodic and NAME.fullmatch(other)}
            for other in waiting | {name}:
                self._jobs.pop(other, None)
            self._jobs[name] = content
            self._changed.notify_all()

    def check(self) -> None:
        """Raise why a checkpoint could not be written, if one could not; waits for nothing."""
        with self._changed:
            self._raise()

    def wait(self) -> None:
        """Return when everything handed over is on the disk, or raise why it is not."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._jobs or self._busy) or self._failure)
            self._raise()

    def close(self) -> None:
        """Finish what is waiting and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if isinstance(self._failure, OSError):
            raise cannot_write(self.folder.checkpoints, self._failure) from self._failure
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                name = next(iter(self._jobs))
                content = self._jobs.pop(name)
                self._busy = True
            try:
                self.folder.check_ours()
                # A checkpoint must not outlive, in a power cut, the metrics from before it.
                if self.folder.metrics.exists():
                    sync(self.folder.metrics)
                write_atomic(self.folder.checkpoints / name, seal(content))
                self._prune(self.folder.checkpoints / name)
            except BaseException as error:  # raised in the training thread, which stops the run
                self._failure = error
            with self._changed:
                self._busy = False
                if self._failure is not None:
                    self._jobs.clear()
                self._changed.notify_all()

    def _prune(self, new: Path) -> None:
        # Only after the new file is in place, and never through a link. Damaged ones do not count
        # as kept, and stay until a later step is written.
        if self.folder.checkpoints.is_symlink() or not NAME.fullmatch(new.name):
            return
        self._damaged.discard(new)
        older = [path for path in files(self.folder) if step_of(path) < step_of(new)]
        kept = [path for path in older if path not in self._damaged][: KEEP - 1]
        for path in set(older) - set(kept):
            path.unlink(missing_ok=True)


def step_name(step: int) -> str:
    """Return the file name of a step's checkpoint."""
    return f"step-{step:08d}.ckpt"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))
