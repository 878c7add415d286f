"""The handwritten digits of scikit-learn, enlarged from 8 to 16 pixels."""

from pathlib import Path

import numpy as np
from PIL import Image

from pipelines.sources import (
    Dataset,
    Labels,
    Pixels,
    Source,
    SourceOptions,
    SourceSplit,
    array_chunks,
)

SEED = 0  # of the split into train and test, always the same


def source(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return the digits, with one image in five held out for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = enlarge(data.images, entry.size), data.target.astype(np.int64)
    test = _held_out(labels, entry.test)
    splits = {
        "train": np.setdiff1d(np.arange(len(labels)), test),
        "test": test,
    }
    return entry.source(
        entry.class_names or (),
        {name: _split(images, labels, chosen) for name, chosen in splits.items()},
    )


def enlarge(images: Pixels, size: int) -> Pixels:
    """Turn gray levels 0..16 into color images of another size."""
    gray = np.rint(images * (255 / 16)).astype(np.uint8)
    shape = (size, size)
    big = [Image.fromarray(one).resize(shape, Image.Resampling.BICUBIC) for one in gray]
    return np.stack([np.asarray(one.convert("RGB")) for one in big])


def _held_out(labels: Labels, count: int) -> Labels:
    """Choose `count` images, the same number of every class."""
    random = np.random.default_rng(SEED)
    classes = np.unique(labels)
    each = count // len(classes)
    chosen = [random.permutation(np.flatnonzero(labels == c))[:each] for c in classes]
    return np.sort(np.concatenate(chosen))


def _split(images: Pixels, labels: Labels, chosen: Labels) -> SourceSplit:
    part, its_labels = images[chosen], labels[chosen]
    return SourceSplit(
        count=len(part),
        size=part.shape[1],
        chunks=lambda: array_chunks(part, its_labels, "digits", chosen.tolist()),
        kept=True,
    )
