"""SVHN, cropped digits, from its `.mat` files; each is loaded whole, one at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipelines.errors import DataError
from pipelines.sources import (
    Chunk,
    Dataset,
    Source,
    SourceOptions,
    SourceSplit,
    array_chunks,
)
from pipelines.sources.published import checked, find_folder


def source(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return SVHN: train, then the extra images unless --no-extra is given, and test."""
    folder = find_folder(entry, root)
    train, notes = ["train_32x32.mat", "extra_32x32.mat"], []
    if options.no_extra:
        train.pop()
        notes.append("without the extra images: 73,257 training images, not 604,388")
    splits = {
        "train": _split(entry, folder, train),
        "test": _split(entry, folder, ["test_32x32.mat"]),
    }
    return entry.source(entry.class_names or (), splits, notes)


def _split(entry: Dataset, folder: Path, names: Sequence[str]) -> SourceSplit:
    from scipy.io import whosmat

    count = 0
    for name in names:
        path = checked(entry, folder, name)
        shapes = {variable: shape for variable, shape, _ in whosmat(path)}
        shape = shapes.get("X", ())
        if len(shape) != 4 or shape[:3] != (32, 32, 3) or shapes.get("y") != (shape[3], 1):
            raise DataError(f"{path} does not have the layout of SVHN: {shapes}", "get it again")
        count += shape[3]
    return SourceSplit(count, entry.size, lambda: _chunks(folder, names), kept=True)


def _chunks(folder: Path, names: Sequence[str]) -> Iterator[Chunk]:
    from scipy.io import loadmat

    for name in names:
        content = loadmat(folder / name, variable_names=["X", "y"])
        labels = content["y"].reshape(-1).astype(np.int64) % 10  # "0" is published as 10
        yield from array_chunks(content["X"].transpose(3, 0, 1, 2), labels, name)
