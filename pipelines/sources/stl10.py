"""STL-10 from its binary files, which are streamed: the unlabeled one has 2.6 GB."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.errors import DataError
from pipelines.sources import (
    ARRAY_CHUNK,
    Chunk,
    Dataset,
    Labels,
    Source,
    SourceOptions,
    SourceSplit,
)
from pipelines.sources.published import checked, find_folder, read_checked

SIDE = 96
IMAGE_BYTES = 3 * SIDE * SIDE
NAMES = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


@dataclass(frozen=True)
class _Part:
    path: Path
    labels: Labels


def source(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return STL-10: the labeled images, then the unlabeled ones, and the test set."""
    folder = find_folder(entry, root)
    unlabeled = checked(entry, folder, "unlabeled_X.bin")
    train = [
        _labeled(entry, folder, "train"),
        _Part(unlabeled, np.full(_count(unlabeled), -1, np.int64)),
    ]
    test = [_labeled(entry, folder, "test")]
    return entry.source(NAMES, {"train": _split(train), "test": _split(test)})


def _labeled(entry: Dataset, folder: Path, split: str) -> _Part:
    # Published labels count from 1.
    labels = np.frombuffer(read_checked(entry, folder, f"{split}_y.bin"), np.uint8)
    part = _Part(checked(entry, folder, f"{split}_X.bin"), labels.astype(np.int64) - 1)
    if _count(part.path) != len(labels):
        raise DataError(f"{part.path} does not match {split}_y.bin", "get both again")
    return part


def _count(path: Path) -> int:
    count, rest = divmod(path.stat().st_size, IMAGE_BYTES)
    if rest:
        raise DataError(f"{path} is not a whole number of images", "get it again")
    return count


def _split(parts: list[_Part]) -> SourceSplit:
    count = sum(len(part.labels) for part in parts)
    return SourceSplit(count, SIDE, lambda: _chunks(parts), kept=True)


def _chunks(parts: list[_Part]) -> Iterator[Chunk]:
    for part in parts:
        name = part.path.name
        with part.path.open("rb") as file:
            for start in range(0, len(part.labels), ARRAY_CHUNK):
                labels = part.labels[start : start + ARRAY_CHUNK]
                data = np.frombuffer(file.read(len(labels) * IMAGE_BYTES), np.uint8)
                # Stored as [n, color, column, row].
                images = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
                paths = [f"{name}:{start + index}" for index in range(len(labels))]
                yield Chunk(labels, paths, images=np.ascontiguousarray(images))
