"""Checkpoints: written beside training, loaded without running code.

A file has torch's own format, an archive with a CRC-32 of every part, and `torch.load` opens it.
The newest file whose checksums hold is loaded; a damaged one is named and skipped.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from torch import Tensor
from typing_extensions import TypedDict  # pydantic accepts that of typing only from 3.12 on

from fastssl.errors import DataError, cannot_write
from fastssl.tracking.run_dir import RunFolder
from pipelines.files import sync, write_atomic
from pipelines.store.manifest import Color, Interpolation, Side

SEAL = b"fastssl-checkpoint-1 "  # how a file of version 0.1.0 begins
BEST = "best.ckpt"
KEEP = 2
NAME = re.compile(r"step-(\d{8,})\.ckpt")


class Preprocessing(TypedDict):
    """How an image becomes an input of the model; within the bounds of a store's manifest."""

    size: Annotated[list[Side], Field(min_length=2, max_length=2)]  # of the input: height, width
    mean: Annotated[list[Color], Field(min_length=3, max_length=3)]
    std: Annotated[list[Annotated[Color, Field(gt=0)]], Field(min_length=3, max_length=3)]
    stored: Side  # height of the store's test images
    resize: Literal["squash", "crop", "pad"]
    interpolation: NotRequired[Interpolation]  # bicubic if an earlier version wrote the file


class SavedProgress(TypedDict):
    """TrainingProgress as a dict; only the field that others read is declared."""

    step: Annotated[int, Field(ge=0)]


@with_config(ConfigDict(arbitrary_types_allowed=True))
class CheckpointContent(TypedDict):
    """The content of a checkpoint file; the keys are those of version 0.1.0."""

    model: dict[str, Tensor]
    ema: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Tensor]
    state: dict[str, Tensor]  # the algorithm's
    quality: Tensor  # pseudo-label counts since the last log step, mean over ranks
    trip: SavedProgress
    config: dict[str, Any]
    store: str  # checksum of its manifest; its fingerprint is among the inputs
    # Version 0.1.0 wrote none of the next three.
    store_name: NotRequired[str]
    inputs: NotRequired[dict[str, str]]  # hashes by name, see build_data.input_hashes
    heads: NotRequired[dict[str, int]]  # of the network, by name
    classes: list[str]
    preprocessing: Preprocessing


def pack(content: CheckpointContent) -> bytes:
    """Return the bytes of a checkpoint file; they are in memory once, however large they are."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    # These are the bytes of the buffer itself. A view of it, as getbuffer() returns, would make
    # Python report an error if both become garbage in one cycle, such as that of an exception.
    return buffer.getvalue()


def read(path: Path) -> CheckpointContent:
    """Read one checkpoint file; never executes code of the file."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise DataError(f"{path} is not a file", "check the path")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}", "check the path") from error
    body = io.BytesIO(_without_seal(data))
    if not _is_whole(body):
        raise DataError(f"{path} is damaged: its checksum does not hold", "use an older checkpoint")
    body.seek(0)
    try:
        found: CheckpointContent = torch.load(body, map_location="cpu", weights_only=True)
        _schema().validate_python(found, strict=True)
    except MemoryError:
        raise
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        why = f"{len(error.errors())} of its entries are missing or wrong, such as {key}"
        raise DataError(f"{path} is refused: {why}", "use a checkpoint of your own") from error
    except Exception as error:  # a foreign file may fail in torch's reader with any exception
        why = "it is intact, but not a checkpoint of fastssl"
        raise DataError(f"{path} is refused: {why}", "use a checkpoint of your own") from error
    return found


@cache
def _schema() -> TypeAdapter[CheckpointContent]:
    return TypeAdapter(CheckpointContent)


def check_fit(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Raise if tensors of a checkpoint are not those that they are loaded into."""
    apart = [k for k in own.keys() | saved.keys() if k not in own or k not in saved]
    apart += [k for k in own.keys() & saved.keys() if own[k].shape != saved[k].shape]
    if apart:
        raise DataError(
            f"the checkpoint does not fit this run: {len(apart)} tensors of the {what} are missing "
            f"or have another shape, such as {min(apart)}",
            "use a checkpoint of the same run, or start anew with another --out",
        )


def _without_seal(data: bytes) -> bytes:
    """Return the archive in a file of version 0.1.0, which has a line with its SHA-256 before it.

    Other files are returned as they are, and nothing where the SHA-256 does not hold.
    """
    if not data.startswith(SEAL):
        return data
    head, _, body = data.partition(b"\n")
    return body if hashlib.sha256(body).hexdigest().encode() in head.split(b" ") else b""


def _is_whole(file: io.BytesIO) -> bool:
    """Return True if the CRC-32 of every part of torch's archive holds."""
    try:
        with zipfile.ZipFile(file) as archive:
            # Parts that claim more bytes than the file has would fill the memory when unpacked.
            claimed = sum(part.file_size for part in archive.infolist())
            return claimed <= file.getbuffer().nbytes and archive.testzip() is None
    except MemoryError:
        raise
    except Exception:  # a damaged directory may fail in zipfile with any exception
        return False


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
        later = [] if begun is None else [path for path in files(folder) if step_of(path) > begun]
        self._damaged = set(later)
        self.seconds = 0.0  # what saving took from the training thread
        self._waiting: dict[str, tuple[str, CheckpointContent]] = {}  # by kind, oldest first
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        if not folder.checkpoints.is_symlink():
            for path in folder.checkpoints.glob(".*.ckpt.new"):  # what a killed run was writing
                path.unlink(missing_ok=True)
        self._thread = ThreadPoolExecutor(1, "checkpoints")

    def save(self, name: str, content: CheckpointContent) -> None:
        """Hand a snapshot over; one of its kind that still waits is replaced.

        So no more than two wait, the last and the best, however slow the disk is.
        """
        self.check()
        kind = "last" if NAME.fullmatch(name) else name
        with self._lock:
            self._waiting.pop(kind, None)
            self._waiting[kind] = name, content
        # The snapshot is no argument of the job: a job that has become idle would keep it alive.
        self._thread.submit(self._write_next)

    def check(self) -> None:
        """Raise why a checkpoint could not be written, if one could not; waits for nothing."""
        if isinstance(self._failure, OSError):
            raise cannot_write(self.folder.checkpoints, self._failure) from self._failure
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Return when everything handed over is on the disk, or raise why it is not."""
        self._thread.submit(int).result()  # does nothing, after all jobs before it
        self.check()

    def close(self) -> None:
        """Finish what is waiting and end the thread."""
        self._thread.shutdown()

    def _write_next(self) -> None:
        with self._lock:
            if not self._waiting or self._failure:
                return
            name, content = self._waiting.pop(next(iter(self._waiting)))
        try:
            self.folder.check_ours()
            # A checkpoint must not outlive, in a power cut, the metrics from before it.
            if self.folder.metrics.exists():
                sync(self.folder.metrics)
            write_atomic(self.folder.checkpoints / name, pack(content))
            self._prune(self.folder.checkpoints / name)
        except BaseException as error:  # raised in the training thread, which stops the run
            self._failure = error

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
