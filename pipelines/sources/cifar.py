"""CIFAR-10 and CIFAR-100, from the python pickles of their author."""

from collections.abc import Iterator, Sequence
from pathlib import Path

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
from pipelines.sources.published import checked, find_folder
from pipelines.sources.unpickle import unpickle


def source(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return CIFAR-10, or CIFAR-100 with its fine labels."""
    folder = find_folder(entry, root)
    *train, test, meta = entry.files  # the order of the table
    names = unpickle(checked(entry, folder, meta).read_bytes(), meta)
    fine = b"fine_" if b"fine_label_names" in names else b""

    def read(file: str) -> tuple[Pixels, Labels]:
        content = unpickle(checked(entry, folder, file).read_bytes(), file)
        return _arrays(content, fine + b"labels", file)

    def chunks(files: Sequence[str]) -> Iterator[Chunk]:
        for file in files:  # one at a time, so that only one is in memory
            yield from array_chunks(*read(file), file)

    def split(files: Sequence[str]) -> SourceSplit:
        # Every file is checked now, and again when its images are read.
        count = sum(len(read(file)[1]) for file in files)
        return SourceSplit(count, entry.size, lambda: chunks(files), kept=True)

    return entry.source(
        [name.decode() for name in names[fine + b"label_names"]],
        {"train": split(train), "test": split([test])},
    )


def _arrays(content: dict[bytes, object], key: bytes, file: str) -> tuple[Pixels, Labels]:
    try:
        labels = np.asarray(content[key], np.int64)
        planes = np.asarray(content[b"data"], np.uint8).reshape(len(labels), 3, 32, 32)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{file} does not have the layout of CIFAR: {error}", "get it again"
        ) from None
    return planes.transpose(0, 2, 3, 1), labels
