"""STL-10 from its binary files, which are streamed: the unlabelled one has 2.6 GB."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.datasets import DATASETS
from pipelines.errors import DataError
from pipelines.sources import ARRAY_CHUNK, Chunk, Labels, Source, SourceSplit, standard
from pipelines.sources.checksums import checked, find_folder, read_checked

SIDE = 96
IMAGE_BYTES = 3 * SIDE * SIDE
NAMES = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


@dataclass(frozen=True)
class _Part:
    path: Path
    labels: Labels


def source(root: Path) -> Source:
    """Return STL-10: the labelled images, then the unlabelled ones, and the test set."""
    folder = find_folder("stl10", root, "stl10_binary")
    train = [_labeled(folder, "train"), _unlabeled(folder)]
    splits = {"train": _split(train), "test": _split([_labeled(folder, "test")])}
    return standard("stl10", NAMES, splits)


def _labeled(folder: Path, split: str) -> _Part:
    # Published labels count from 1.
    labels = np.frombuffer(read_checked("stl10", folder, f"{split}_y.bin"), np.uint8)
    part = _Part(checked("stl10", folder, f"{split}_X.bin"), labels.astype(np.int64) - 1)
    if _count(part.path) != len(labels):
        raise DataError(f"{part.path} does not go with {split}_y.bin", "get both again")
    return part


def _unlabeled(folder: Path) -> _Part:
    path = checked("stl10", folder, "unlabeled_X.bin")
    return _Part(path, np.full(_count(path), -1, np.int64))


def _count(path: Path) -> int:
    count, rest = divmod(path.stat().st_size, IMAGE_BYTES)
    if rest:
        raise DataError(f"{path} is no whole number of images", "get it again")
    return count


def _split(parts: list[_Part]) -> SourceSplit:
    count = sum(len(part.labels) for part in parts)
    return SourceSplit(count, DATASETS["stl10"].train_size, lambda: _chunks(parts), kept=True)


def _chunks(parts: list[_Part]) -> Iterator[Chunk]:
    for part in parts:
        name = part.path.name
        with part.path.open("rb") as file:
            for start in range(0, len(part.labels), ARRAY_CHUNK):
                labels = part.labels[start : start + ARRAY_CHUNK]
                data = np.frombuffer(file.read(len(labels) * IMAGE_BYTES), np.uint8)
                # Stored by colour, then column, then row.
                images = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
                paths = [f"{name}:{start + place}" for place in range(len(labels))]
                yield Chunk(labels, paths, images=np.ascontiguousarray(images))
