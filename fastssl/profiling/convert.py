"""The rate of conversion: arrays of 32 pixels, stored raw, and photos, stored as 256-pixel JPEG.

Checksums and syncing to disk are part of the measured time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastssl.errors import DataError
from fastssl.profiling.measure import Case, Measured, interleave, make_record, rate
from fastssl.profiling.subjects import ConvertOptions
from pipelines.convert import Options as Conversion
from pipelines.convert import convert
from pipelines.extras import import_problem
from pipelines.sources import Source, SourceSplit, array_chunks, file_chunks
from pipelines.sources.scan import Scan

Array = np.ndarray[Any, Any]
ARRAY_SIZE, PHOTO_SIZE, QUALITY = 32, 256, 95


def run(options: ConvertOptions) -> dict[str, Any]:
    """Measure our conversion; return the record."""
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as name:
        folder = Path(name)
        if options.arrays:
            cases = array_cases(options, folder, *make_arrays(options.arrays))
            measured |= interleave(cases, options.repetitions)
        if options.photos:
            cases = photo_cases(options, folder, find_photos(options, folder))
            measured |= interleave(cases, options.repetitions)
    return record(options, measured)


def timed(folder: Path, count: int, work: Callable[[Path], object]) -> Case:
    """Return a case that writes `count` images into a fresh place and returns images per second."""
    out = folder / "out"

    def write() -> int:
        work(out)
        return count

    def case() -> float:
        images_per_second = rate(write)
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        os.sync()  # pending writes of one case must not slow the next one
        return images_per_second

    return case


def make_arrays(count: int) -> tuple[Array, Array]:
    """Return random images, uint8 [count, 32, 32, 3], and their labels."""
    shape = (count, ARRAY_SIZE, ARRAY_SIZE, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return images, np.arange(count) % 10


def array_cases(
    options: ConvertOptions, folder: Path, images: Array, labels: Array
) -> dict[str, Case]:
    """Return the cases that convert arrays, one per format."""
    source = _source(
        SourceSplit(
            len(images), ARRAY_SIZE, lambda: array_chunks(images, labels, "arrays"), kept=True
        )
    )

    def case(*formats: str) -> Case:
        how = Conversion(formats=formats, workers=options.workers)
        how.load()
        return timed(folder, len(images), lambda out: convert(source, out, how))

    cases = {"arrays: fastssl, tar": case("dali")}
    if not import_problem("ffcv"):
        cases["arrays: fastssl, beton"] = case("ffcv")
        cases["arrays: fastssl, both"] = case("ffcv", "dali")
    return cases


def photo_cases(options: ConvertOptions, folder: Path, files: list[str]) -> dict[str, Case]:
    """Return the case that converts photos."""
    labels = np.arange(len(files)) % 10
    split = SourceSplit(len(files), PHOTO_SIZE, lambda: file_chunks(files, labels, files))
    source = _source(split)
    how = Conversion(size=PHOTO_SIZE, quality=QUALITY, workers=options.workers)
    how.load()
    return {"photos: fastssl": timed(folder, len(files), lambda out: convert(source, out, how))}


def find_photos(options: ConvertOptions, folder: Path) -> list[str]:
    """Return `options.photos` files; those of the folder are repeated."""
    given = Path(options.folder) if options.folder else generate_photos(folder / "photos")
    found = list(Scan(given).images())
    if not found:
        raise DataError(f"{given} holds no images", "give a folder that does")
    return [found[index % len(found)] for index in range(options.photos)]


def generate_photos(folder: Path, count: int = 40) -> Path:
    """Write JPEG files with the size, smoothness and noise of photos."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for index in range(count):
        coarse = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC))
        noisy = smooth.astype(np.int64) + random.integers(-12, 13, smooth.shape)
        image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        image.save(folder / f"{index}.jpg", quality=92)
    return folder


def _source(split: SourceSplit) -> Source:
    names = [str(number) for number in range(10)]
    return Source(name="profile", class_names=names, splits={"train": split}, resize="squash")


def record(options: ConvertOptions, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the record."""
    return make_record(
        "convert",
        {
            "arrays": options.arrays,
            "photos": options.photos,
            "workers": options.workers,
            "repetitions": options.repetitions,
            "source": "own photos" if options.folder else "generated photos, 500 x 375",
        },
        [case.row(name, "images/s", busy=round(case.busy, 2)) for name, case in measured.items()],
        {},
    )
