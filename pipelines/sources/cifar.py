"""CIFAR-10 and CIFAR-100, from the python pickles of their author."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.datasets import DATASETS
from pipelines.errors import DataError
from pipelines.sources import Chunk, Labels, Pixels, Source, SourceSplit, array_chunks, standard
from pipelines.sources.checksums import find_folder, read_checked
from pipelines.sources.unpickle import unpickle


@dataclass(frozen=True)
class _Layout:
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: bytes
    names: bytes


LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        labels=b"labels",
        names=b"label_names",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        labels=b"fine_labels",
        names=b"fine_label_names",
    ),
}


def source(name: str, root: Path) -> Source:
    """Return CIFAR-10 or CIFAR-100 from the folder that holds its files."""
    layout = LAYOUTS[name]
    folder = find_folder(name, root, layout.folder)
    reader = _Reader(name, folder, layout)
    meta = unpickle(read_checked(name, folder, layout.meta), layout.meta)
    names = [_text(one) for one in meta[layout.names]]
    return standard(
        name, names, {"train": reader.split(layout.train), "test": reader.split(layout.test)}
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Reader:
    """Reads one file at a time, so that one is in memory."""

    def __init__(self, name: str, folder: Path, layout: _Layout) -> None:
        self.name, self.folder, self.layout = name, folder, layout

    def split(self, files: Sequence[str]) -> SourceSplit:
        """Describe a split; every file is checked now and again when its images are read."""
        count = sum(len(self._read(file)[1]) for file in files)
        size = DATASETS[self.name].train_size
        return SourceSplit(count, size, lambda: self._chunks(files), kept=True)

    def _chunks(self, files: Sequence[str]) -> Iterator[Chunk]:
        for file in files:
            yield from array_chunks(*self._read(file), file)

    def _read(self, file: str) -> tuple[Pixels, Labels]:
        content = unpickle(read_checked(self.name, self.folder, file), file)
        try:
            flat = np.asarray(content[b"data"], np.uint8)
            labels = np.asarray(content[self.layout.labels], np.int64)
            planes = flat.reshape(len(labels), 3, 32, 32)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"{file} is not laid out as CIFAR is: {error}", "get it again"
            ) from None
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels
