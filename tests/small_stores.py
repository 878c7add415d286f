"""Small stores in every format that can be written here, for tests of readers and loaders."""

from pathlib import Path

import numpy as np

import fastssl
from pipelines.convert import Options, convert
from pipelines.sources import Source, SourceSplit, array_chunks
from pipelines.store.store import Store, open_store
from tests.image_files import noise
from tests.installed import INSTALLED_FORMATS

CLASSES = 4


def pixels(count: int, size: int, seed: int) -> np.ndarray:
    """Return smooth random images with a little noise, no two alike."""
    random = np.random.default_rng(seed)
    smooth = np.stack([np.asarray(noise((size, size), random)) for _ in range(count)])
    grain = random.integers(-8, 9, smooth.shape)
    return (smooth.astype(np.int64) + grain).clip(0, 255).astype(np.uint8)


def make_store(
    path: Path,
    *,
    count: int = 96,
    size: int = 32,
    quality: int = 0,
    formats: tuple[str, ...] = INSTALLED_FORMATS,
) -> Store:
    """Write `count` training and a quarter as many test images; every sixth has no label."""
    splits = {}
    for seed, (name, number) in enumerate((("train", count), ("test", count // 4))):
        images = pixels(number, size, seed)
        labels = np.arange(number) % CLASSES
        if name == "train":
            labels[::6] = -1
        splits[name] = SourceSplit(
            count=number,
            size=size,
            chunks=lambda images=images, labels=labels: array_chunks(images, labels, "small"),
            kept=True,
        )
    source = Source(
        name="small",
        class_names=[f"class{number}" for number in range(CLASSES)],
        splits=splits,
        resize="squash",
    )
    convert(source, path, Options(formats=formats, quality=quality, workers=1))
    return open_store(path)


def digits_without_test(folder: Path) -> Store:
    """Write the training images of the digits as a store that has no test images."""
    digits = open_store(folder.parent / "digits")
    file = folder.with_suffix(".npz")
    images = [digits.image("train", index) for index in range(digits.splits["train"].count)]
    np.savez(file, images=np.stack(images), labels=digits.labels("train"))
    return fastssl.convert(file, folder, test_fraction=0, progress=False)
