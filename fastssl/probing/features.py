"""Frozen features of every image of a store, computed once and kept in the store's folder.

They lie in STORE/features: they move and vanish with the images that they describe, and neither
`verify` nor the fingerprint reads a file that the manifest does not list. A file KEY.npy is
complete. While it is computed, its rows are appended to KEY.part, and KEY.json holds how many of
them are on the disk, so that an interrupted pass goes on where it was. A pass that the network or
the store makes impossible leaves neither.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastssl import plugins
from fastssl.config.schema import RunConfig
from fastssl.engine.devices import Device
from fastssl.engine.signals import Stop
from fastssl.errors import ConfigError, DataError, ResourceError, writing
from fastssl.models.classifier import classifier_of, features_of
from fastssl.tracking.progress_bar import Progress
from pipelines.errors import UserError
from pipelines.files import Lock, read_json, sync, write_json
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.prefetch import Ring
from pipelines.readers.base import streaming
from pipelines.store.store import Store

logger = logging.getLogger(__name__)

Rows = npt.NDArray[np.float32]  # [n, F], mapped from the file
FOLDER = "features"
AHEAD = 2  # batches that are decoded before the model needs them
CPU_BATCH = 32  # activations of more images do not fit into the caches and are slower
EVERY = 5.0  # seconds between two records of the rows on the disk
FIX = "free space or permissions there, or copy the store to a folder where you may write"


@dataclass(frozen=True, slots=True)
class FrozenNetwork:
    """A network in eval mode and the preprocessing of its images."""

    model: nn.Module
    config: RunConfig
    device: Device
    size: tuple[int, int]  # height and width of an input
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def width(self) -> int:
        """Return the number of features of an image."""
        return classifier_of(self.model, "probe").in_features

    def key(self, store: Store) -> str:
        """Return a name that changes with all that decides the features of a store's images."""
        config = self.config
        network = [config.model, config.variant, plugins.file_hashes({"model": config.model})]
        about = [store.fingerprint, network, self.size, self.mean, self.std, self.device.precision]
        checksum = hashlib.sha256(json.dumps(about).encode())
        for name, tensor in self.model.state_dict().items():
            if name.split(".")[0] not in ("classifier", "heads"):
                data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                checksum.update(name.encode() + b"\0")
                checksum.update(data.numpy().data)
        return checksum.hexdigest()[:32]


def compute_features(network: FrozenNetwork, store: Store) -> dict[str, Rows]:
    """Return the features of all images, by split; those of an earlier call are read again."""
    path = store.path / FOLDER / f"{network.key(store)}.npy"
    shape = sum(info.count for info in store.splits.values()), network.width
    table = _read(path, shape)
    if table is None:
        with writing(path.parent, FIX):
            path.parent.mkdir(exist_ok=True)
            lock = Lock(path.with_suffix(".lock"), wait=True)
        try:
            table = _read(path, shape)  # another process may have finished it meanwhile
            if table is None:
                with writing(path.parent, FIX):
                    _compute(network, store, path, shape)
                table = _read(path, shape)
        finally:
            lock.release(remove=True)
    assert table is not None
    ends = np.cumsum([info.count for info in store.splits.values()])
    return dict(zip(store.splits, np.split(table, ends[:-1]), strict=True))


def _read(path: Path, shape: tuple[int, int]) -> Rows | None:
    """Return a complete file of features, mapped, or None if there is none."""
    try:
        found: Rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == shape and found.dtype == np.float32 else None


def _compute(network: FrozenNetwork, store: Store, path: Path, shape: tuple[int, int]) -> None:
    """Compute what is missing of a file of features, in batches that always begin alike."""
    part, record = path.with_suffix(".part"), path.with_suffix(".json")
    header = io.BytesIO()
    about: Any = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    start, row = len(header.getvalue()), 4 * shape[1]
    done = _rows_done(part, record, lambda rows: start + rows * row)
    with _kept_if_resumable(part, record), open(part, "r+b" if done else "wb") as file:
        file.write(header.getvalue())
        file.truncate(start + done * row)  # rows after the record may be zeros after a power cut
        file.seek(0, os.SEEK_END)
        with Stop() as stop, Progress(shape[0], "computing features") as bar:
            bar.advance(done)
            recorded = time.monotonic()
            for rows in _read_batches(network, store, done):
                file.write(np.ascontiguousarray(rows, "<f4").data)
                done += len(rows)
                bar.advance(len(rows))
                if stop.signal or time.monotonic() - recorded > EVERY:
                    _record(file, record, done)
                    recorded = time.monotonic()
                if stop.signal:
                    number = stop.signal
                    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
    sync(part)
    os.replace(part, path)
    record.unlink(missing_ok=True)


@contextmanager
def _kept_if_resumable(part: Path, record: Path) -> Iterator[None]:
    """Remove what a failed pass leaves if no later one can go on from it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (ConfigError, DataError)):  # the next pass would fail where it did
            record.unlink(missing_ok=True)
        if not record.exists():
            part.unlink(missing_ok=True)
        raise


def _rows_done(part: Path, record: Path, end_of: Callable[[int], int]) -> int:
    try:
        done = int(read_json(record)["rows"])
        return done if done > 0 and part.stat().st_size >= end_of(done) else 0
    except (OSError, UserError, KeyError, TypeError, ValueError):
        return 0


def _record(file: IO[bytes], record: Path, done: int) -> None:
    file.flush()
    os.fsync(file.fileno())
    write_json(record, {"rows": done})


def _read_batches(
    network: FrozenNetwork, store: Store, done: int
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield what `_batches` does; its OSError is about the images, not about the features."""
    try:
        yield from _batches(network, store, done)
    except OSError as error:
        raise ResourceError(
            f"the images of {store.path} can't be read: {error.strerror or error}",
            "check that disk, then type the same line again",
        ) from error


def _batches(network: FrozenNetwork, store: Store, done: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the features of all images after the first `done`, one batch at a time.

    `done` is the end of a batch. Images are decoded in a thread while the model computes.
    """
    device = network.device
    size = network.config.eval_batch
    if device.device.type == "cpu":
        size = min(size, CPU_BATCH)
    for split, info in store.splits.items():
        left, done = np.arange(min(done, info.count), info.count), max(done - info.count, 0)
        with EvaluationBatches(
            store,
            split,
            left,
            size=network.size,
            mean=network.mean,
            std=network.std,
            reader=_reader(network, store, split),
            device=str(device.device),
            batch=size,
            threads=device.loader_threads,
        ) as batches:

            def produce(
                acquire: Callable[[], object], batches: EvaluationBatches = batches
            ) -> Iterator[Tensor]:
                for images, _ in batches:
                    acquire()
                    yield images

            ring: Ring[object, Tensor] = Ring(produce, object, ahead=AHEAD)
            try:
                for images in ring:
                    yield _forward(network, images)
            finally:
                ring.close()


def _reader(network: FrozenNetwork, store: Store, split: str) -> str:
    """Return the reader: one that streams, because every image is needed only once."""
    wanted = network.config.reader
    streamed = store.splits[split].encoding != "raw" and streaming(store)
    return streamed[0] if streamed and wanted == "auto" else wanted


@torch.inference_mode()
def _forward(network: FrozenNetwork, images: Tensor) -> npt.NDArray[np.float32]:
    with network.device.autocast():
        found = features_of(network.model, images).float().cpu().numpy()
    if found.shape != (len(images), network.width):
        raise ConfigError(
            f"{network.config.model} has {found.shape[1:]} features of an image, and a classifier "
            f"of {network.width}",
            "let forward(x, heads=True) return as `features` what goes into `classifier`",
        )
    if not np.isfinite(found).all():
        raise DataError(
            f"{network.config.model} gives features that are not finite numbers",
            "use other weights",
        )
    return found
