"""STL-10 from its binary files, which are streamed: the unlabeled one has 2.6 GB."""

from collections.abc import Iterator
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
    array_chunks,
)
from pipelines.sources.published import checked, find_folder

SIDE = 96
IMAGE_BYTES = 3 * SIDE * SIDE
NAMES = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]

Part = tuple[Path, Labels]  # a file of images, and their labels


def source(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return STL-10: the labeled images, then the unlabeled ones, and the test set."""
    folder = find_folder(entry, root)
    unlabeled = checked(entry, folder, "unlabeled_X.bin")
    no_labels = np.full(_count(unlabeled), -1, np.int64)
    train = _split(_labeled(entry, folder, "train"), (unlabeled, no_labels))
    return entry.source(NAMES, {"train": train, "test": _split(_labeled(entry, folder, "test"))})


def _labeled(entry: Dataset, folder: Path, split: str) -> Part:
    # Published labels count from 1.
    labels = np.fromfile(checked(entry, folder, f"{split}_y.bin"), np.uint8)
    path = checked(entry, folder, f"{split}_X.bin")
    if _count(path) != len(labels):
        raise DataError(f"{path} does not match {split}_y.bin", "get both again")
    return path, labels.astype(np.int64) - 1


def _count(path: Path) -> int:
    count, rest = divmod(path.stat().st_size, IMAGE_BYTES)
    if rest:
        raise DataError(f"{path} is not a whole number of images", "get it again")
    return count


def _split(*parts: Part) -> SourceSplit:
    def chunks() -> Iterator[Chunk]:
        for path, labels in parts:
            with path.open("rb") as file:
                for start in range(0, len(labels), ARRAY_CHUNK):
                    part = range(start, min(start + ARRAY_CHUNK, len(labels)))
                    data = np.frombuffer(file.read(len(part) * IMAGE_BYTES), np.uint8)
                    # Stored as [n, color, column, row].
                    images = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
                    yield from array_chunks(images, labels[part.start : part.stop], path.name, part)

    return SourceSplit(sum(len(labels) for _, labels in parts), SIDE, chunks, kept=True)
