"""Small random images in class folders, for tests that want data of one's own."""

from pathlib import Path

import numpy as np
from PIL import Image


def noise(size: tuple[int, int], random: np.random.Generator) -> Image.Image:
    """Return a smooth random image, so that JPEG keeps it much as it is."""
    coarse = random.integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def write_folder(
    path: Path,
    classes: int = 3,
    per_class: int = 8,
    size: tuple[int, int] = (40, 32),
    seed: int = 0,
    suffixes: tuple[str, ...] = (".jpg", ".png"),
) -> Path:
    """Write class folders `class0`, `class1`, ... of small images; width and height in `size`."""
    random = np.random.default_rng(seed)
    for label in range(classes):
        folder = path / f"class{label}"
        folder.mkdir(parents=True)
        for place in range(per_class):
            suffix = suffixes[place % len(suffixes)]
            noise(size, random).save(folder / f"picture{place}{suffix}")
    return path


def write_flat(path: Path, count: int = 8, size: tuple[int, int] = (40, 32), seed: int = 1) -> Path:
    """Write images without classes into one folder."""
    random = np.random.default_rng(seed)
    path.mkdir(parents=True)
    for place in range(count):
        noise(size, random).save(path / f"loose{place}.jpg")
    return path
