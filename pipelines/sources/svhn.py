"""SVHN, cropped digits, from its `.mat` files; each is loaded whole, one at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipelines.datasets import DATASETS, DIGITS
from pipelines.errors import DataError
from pipelines.sources import ARRAY_CHUNK, Chunk, Source, SourceSplit, standard
from pipelines.sources.checksums import checked, find_folder


def source(root: Path, *, extra: bool = True) -> Source:
    """Return SVHN: train, then the extra images unless they are not wanted, and test."""
    folder = find_folder("svhn", root, "svhn")
    train = ["train_32x32.mat", "extra_32x32.mat"] if extra else ["train_32x32.mat"]
    notes = [] if extra else ["without the extra images: 73,257 to train on, not 604,388"]
    splits = {"train": _split(folder, train), "test": _split(folder, ["test_32x32.mat"])}
    return standard("svhn", DIGITS, splits, notes)


def _split(folder: Path, names: Sequence[str]) -> SourceSplit:
    from scipy.io import whosmat

    count = 0
    for name in names:
        path = checked("svhn", folder, name)
        shapes = {variable: shape for variable, shape, _ in whosmat(path)}
        shape = shapes.get("X", ())
        if len(shape) != 4 or shape[:3] != (32, 32, 3) or shapes.get("y") != (shape[3], 1):
            raise DataError(f"{path} is not laid out as SVHN is: {shapes}", "get it again")
        count += shape[3]
    return SourceSplit(
        count, DATASETS["svhn"].train_size, lambda: _chunks(folder, names), kept=True
    )


def _chunks(folder: Path, names: Sequence[str]) -> Iterator[Chunk]:
    from scipy.io import loadmat

    for name in names:
        content = loadmat(folder / name, variable_names=["X", "y"])
        images, labels = content["X"], content["y"].reshape(-1).astype(np.int64) % 10  # 10 is "0"
        for start in range(0, len(labels), ARRAY_CHUNK):
            stop = min(start + ARRAY_CHUNK, len(labels))
            part = np.ascontiguousarray(images[..., start:stop].transpose(3, 0, 1, 2))
            paths = [f"{name}:{place}" for place in range(start, stop)]
            yield Chunk(labels[start:stop], paths, images=part)
