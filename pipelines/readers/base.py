"""Readers: indices in, uint8 images out, and nothing else.

A reader gives the images of a split in exactly the order it is asked for, repeats included, so
that order, resume and ranks are the same whichever one is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.errors import ConfigError
from pipelines.registry import Registry
from pipelines.store.records import Indices, Pixels

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store


class Reader(ABC):
    """The images of one split of a store."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        info = store.splits[split]
        self.store = store
        self.split = split
        self.threads = threads
        self.device = device
        self.shape = (info.height, info.width, 3)

    @abstractmethod
    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels | Tensor]:
        """Yield the images [n, H, W, 3] of every entry of the plan.

        What is yielded is good until the next is asked for; it lies in memory, or on the device
        where the reader works there.
        """

    def read(self, indices: Indices, out: Pixels) -> None:
        """Fill `out` [n, H, W, 3] with the images of the indices."""
        for images in self.stream([indices]):
            out[:] = images if isinstance(images, np.ndarray) else images.cpu().numpy()

    def close(self) -> None:  # noqa: B027  (most readers hold nothing that needs it)
        """Let go of files, threads and memory."""


def is_installed(package: str) -> bool:
    """Return True if an optional package can be found; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):
        return False


@dataclass(frozen=True)
class ReaderInfo:
    """A reader by name, imported when it is used."""

    name: str
    summary: str
    target: str  # module:class
    package: str | None = None  # what must be installed
    format: str | None = None  # what the store must hold
    decodes_on_gpu: bool = False

    @property
    def installed(self) -> bool:
        """Tell whether what the reader needs is there."""
        return self.package is None or is_installed(self.package)

    def load(self) -> Any:
        """Import the reader's class."""
        if not self.installed:
            raise ConfigError(
                f"the reader {self.name} needs {self.package}, which is not installed",
                f"pip install 'fastssl[{self.name}]'",
            )
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)

    def open(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> Reader:
        """Open a split of a store."""
        if self.format is not None and self.format not in store.formats:
            raise ConfigError(
                f"the store {store.path} has no {self.format} files for the reader {self.name}",
                f"convert it again with --format {self.format}, or take another reader",
            )
        reader: Reader = self.load()(store, split, threads=threads, device=device)
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
    return [
        name
        for name in READERS
        if READERS[name].installed and READERS[name].format in store.formats
    ]
