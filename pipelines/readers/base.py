"""What a reader is, and the registry of readers."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import ConfigError
from pipelines.extras import import_problem, install_line
from pipelines.registry import Registry
from pipelines.store.records import Indices, Pixels, Stored

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store


class Reader(ABC):
    """Reads the images of one split of a store."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        info = store.splits[split]
        self.store = store
        self.split = split
        self.threads = threads
        self.device = device
        self.shape = (info.height, info.width, 3)

    @abstractmethod
    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels | Tensor]:
        """Yield the images [n, H, W, 3] of every entry of the plan, in order.

        An array or tensor is valid until the next one is requested, because its memory may be
        reused. An entry may be empty or repeat an index. A reader that works on the device yields
        tensors there, every other reader yields arrays. A reader may consume the plan some entries
        ahead of what it yields.
        """

    def read(self, indices: Indices, out: Pixels) -> None:
        """Fill `out` [n, H, W, 3] with the images of the indices."""
        for images in self.stream([indices]):
            out[:] = images if isinstance(images, np.ndarray) else images.cpu().numpy()

    def stream_reads(self, plan: Iterable[Indices]) -> Iterator[Pixels]:
        """Yield what `read` returns for every entry of the plan, in one buffer."""
        out = np.empty((0, *self.shape), dtype=np.uint8)
        for indices in plan:
            if len(out) != len(indices):
                out = np.empty((len(indices), *self.shape), dtype=np.uint8)
            self.read(indices, out)
            yield out

    def close(self) -> None:  # noqa: B027  (most readers have nothing to close)
        """Release files, threads and memory."""


def copy_raw(stored: Stored, indices: Indices, out: Pixels) -> None:
    """Fill `out` [n, H, W, 3] with images that are stored as raw pixels."""
    if len(indices):
        np.stack(stored.get(indices), out=out.reshape(len(indices), -1))


@dataclass(frozen=True)
class ReaderInfo:
    """An entry of the registry; the reader's module is imported when it is used."""

    name: str
    summary: str
    target: str  # module:class
    package: str | None = None  # must be installed
    format: str | None = None  # files that the store must contain; None: any
    decodes_on_gpu: bool = False

    @property
    def problem(self) -> str | None:
        """Why the package that the reader needs cannot be used, None if it can."""
        return None if self.package is None else import_problem(self.package)

    @property
    def installed(self) -> bool:
        """True if the package that the reader needs can be used."""
        return self.problem is None

    def open(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> Reader:
        """Open a split of a store."""
        if self.problem:
            raise ConfigError(
                f"the reader {self.name} needs {self.package}, which {self.problem}",
                install_line(self.name, self.problem),
            )
        if self.format is not None and self.format not in store.formats:
            raise ConfigError(
                f"the store {store.path} has no {self.format} files for the reader {self.name}",
                f"{store.convert_line(self.format)}; or choose another reader",
            )
        module, name = self.target.split(":")
        reader: Reader = getattr(importlib.import_module(module), name)(
            store, split, threads=threads, device=device
        )
        return reader


READERS: Registry[ReaderInfo] = Registry("reader")
for _info in (
    ReaderInfo(
        "resident",
        "the whole split in memory, decoded once",
        "pipelines.readers.resident:ResidentReader",
    ),
    ReaderInfo(
        "ffcv",
        "streams a .beton file, decoded by FFCV on the CPU",
        "pipelines.readers.ffcv:FfcvReader",
        package="ffcv",
        format="ffcv",
    ),
    ReaderInfo(
        "dali",
        "streams tar shards, decoded by DALI (nvJPEG on a GPU)",
        "pipelines.readers.dali:DaliReader",
        package="nvidia.dali",
        format="dali",
        decodes_on_gpu=True,
    ),
):
    READERS.add(_info.name, _info)


def streaming(store: Store) -> list[str]:
    """Return the installed readers that stream this store's files, in alphabetical order."""
    found = (READERS[name] for name in READERS)
    return [info.name for info in found if info.format in store.formats and info.installed]
