"""CIFAR-10 and CIFAR-100, from the python pickles of their author."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import DataError
from pipelines.sources import (
    Chunk,
    Dataset,
    Labels,
    Pixels,
    Source,
    SourceOptions,
    SourceSplit,
    array_chunks,
)
from pipelines.sources.published import find_folder, read_checked
from pipelines.sources.unpickle import unpickle


@dataclass(frozen=True)
class _Layout:
    """The names of the files, and of the keys in their pickles."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: bytes
    names: bytes


TEN = _Layout(
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    labels=b"labels",
    names=b"label_names",
)
HUNDRED = _Layout(
    train=("train",),
    test=("test",),
    meta="meta",
    labels=b"fine_labels",
    names=b"fine_label_names",
)


def cifar10(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return CIFAR-10."""
    return _source(entry, root, TEN)


def cifar100(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return CIFAR-100 with its fine labels."""
    return _source(entry, root, HUNDRED)


def _source(entry: Dataset, root: Path, layout: _Layout) -> Source:
    folder = find_folder(entry, root)
    reader = _Reader(entry, folder, layout)
    meta = unpickle(read_checked(entry, folder, layout.meta), layout.meta)
    names = [_text(one) for one in meta[layout.names]]
    return entry.source(
        names, {"train": reader.split(layout.train), "test": reader.split(layout.test)}
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Reader:
    """Reads one file at a time, so that only one is in memory."""

    def __init__(self, entry: Dataset, folder: Path, layout: _Layout) -> None:
        self.entry, self.folder, self.layout = entry, folder, layout

    def split(self, files: Sequence[str]) -> SourceSplit:
        """Return a split. Every file is checked now, and again when its images are read."""
        count = sum(len(self._read(file)[1]) for file in files)
        return SourceSplit(count, self.entry.train_size, lambda: self._chunks(files), kept=True)

    def _chunks(self, files: Sequence[str]) -> Iterator[Chunk]:
        for file in files:
            yield from array_chunks(*self._read(file), file)

    def _read(self, file: str) -> tuple[Pixels, Labels]:
        content = unpickle(read_checked(self.entry, self.folder, file), file)
        try:
            flat = np.asarray(content[b"data"], np.uint8)
            labels = np.asarray(content[self.layout.labels], np.int64)
            planes = flat.reshape(len(labels), 3, 32, 32)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"{file} does not have the layout of CIFAR: {error}", "get it again"
            ) from None
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels
