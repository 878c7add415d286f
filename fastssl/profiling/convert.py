"""The rate of conversion: arrays against ffcv's own writer, photographs against one Pillow process.

Arrays of 32 pixels are stored as they are: there the writers are measured, with checksums and
syncing to disk in our time and not in ffcv's. Photographs become JPEG of 256 pixels.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastssl.errors import ConfigError, DataError
from fastssl.profiling.measure import Measured, environment, interleave
from pipelines.convert import Options as Conversion
from pipelines.convert import convert, ffcv
from pipelines.sources import Source, SourceSplit, array_chunks, file_chunks
from pipelines.sources.scan import Scan

ARRAY_SIZE, PHOTO_SIZE, QUALITY = 32, 256, 95


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    arrays: int = 50_000
    """Images of 32 pixels; 0 leaves this part out."""
    photos: int = 3_000
    """Photographs to convert, those of the folder again and again; 0 leaves this part out."""
    folder: str | None = None
    """Photographs of one's own, at any depth; None draws some."""
    workers: int = 2
    """Processes of ours, and of ffcv's writer."""
    repetitions: int = 5
    """Counted rounds; one more warms up."""


def run(options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = _options({**(options or {}), **more})
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as name:
        folder = Path(name)
        if asked.arrays:
            measured |= interleave(_array_cases(asked, folder), asked.repetitions)
        if asked.photos:
            measured |= interleave(_photo_cases(asked, folder), asked.repetitions)
    return _record(asked, measured)


def _options(given: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"convert has no option {name!r}", f"take: {', '.join(sorted(known))}"
            )
    asked = Options(**given)
    if asked.workers < 1 or asked.repetitions < 1 or min(asked.arrays, asked.photos) < 0:
        raise ConfigError(
            "convert is measured with positive numbers", "type workers=2 repetitions=5"
        )
    return asked


def _timed(folder: Path, count: int, work: Callable[[Path], object]) -> Callable[[], float]:
    """Return a case: do the work into a fresh place, return images a second."""

    def case() -> float:
        out = folder / "out"
        started = time.perf_counter()
        work(out)
        passed = time.perf_counter() - started
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        os.sync()  # what one case left to write must not slow the next
        return count / passed

    return case


def _array_cases(asked: Options, folder: Path) -> dict[str, Callable[[], float]]:
    shape = (asked.arrays, ARRAY_SIZE, ARRAY_SIZE, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = np.arange(asked.arrays) % 10
    split = SourceSplit(
        asked.arrays, ARRAY_SIZE, lambda: array_chunks(images, labels, "arrays"), kept=True
    )
    source = _source(split)

    def ours(*formats: str) -> Callable[[], float]:
        how = Conversion(formats=formats, workers=asked.workers)
        how.load()
        return _timed(folder, asked.arrays, lambda out: convert(source, out, how))

    cases = {"arrays: fastssl, tar": ours("dali")}
    if ffcv.installed():
        cases["arrays: fastssl, beton"] = ours("ffcv")
        cases["arrays: fastssl, both"] = ours("ffcv", "dali")
        cases["arrays: ffcv's DatasetWriter"] = _timed(
            folder, asked.arrays, lambda out: _plain_ffcv(out, images, labels, asked.workers)
        )
    return cases


def _plain_ffcv(out: Path, images: Any, labels: Any, workers: int) -> None:
    """Write arrays as a user of ffcv does."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    samples = [(image, int(labels[place]), place) for place, image in enumerate(images)]
    wanted = {"image": RGBImageField(write_mode="raw"), "label": IntField(), "index": IntField()}
    with contextlib.redirect_stderr(io.StringIO()):  # its bar
        DatasetWriter(str(out), wanted, num_workers=workers).from_indexed_dataset(samples)


def _source(split: SourceSplit) -> Source:
    names = [str(number) for number in range(10)]
    return Source(name="profile", class_names=names, splits={"train": split}, resize="squash")


def _photo_cases(asked: Options, folder: Path) -> dict[str, Callable[[], float]]:
    given = Path(asked.folder) if asked.folder else _draw_photos(folder / "photos")
    found = list(Scan(given).images())
    if not found:
        raise DataError(f"{given} holds no pictures", "give a folder that does")
    files = [found[place % len(found)] for place in range(asked.photos)]
    labels = np.arange(asked.photos) % 10
    source = _source(
        SourceSplit(asked.photos, PHOTO_SIZE, lambda: file_chunks(files, labels, files))
    )
    how = Conversion(size=PHOTO_SIZE, quality=QUALITY, workers=asked.workers)
    how.load()
    return {
        "photos: fastssl": _timed(folder, asked.photos, lambda out: convert(source, out, how)),
        "photos: one Pillow process": _timed(
            folder, asked.photos, lambda out: [_plain_pillow(path) for path in files]
        ),
    }


def _plain_pillow(path: str) -> int:
    with Image.open(path) as picture:
        small = picture.convert("RGB").resize((PHOTO_SIZE, PHOTO_SIZE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY)
    return file.tell()


def _draw_photos(folder: Path, count: int = 40) -> Path:
    """Draw pictures of the size of photographs, as smooth and as noisy."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for place in range(count):
        coarse = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC))
        noisy = smooth.astype(np.int64) + random.integers(-12, 13, smooth.shape)
        picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{place}.jpg", quality=92)
    return folder


def _record(asked: Options, measured: Mapping[str, Measured]) -> dict[str, Any]:
    def over(ours: str, theirs: str) -> float | None:
        if ours not in measured or theirs not in measured:
            return None
        return round(measured[ours].median / measured[theirs].median, 2)

    ratio = {
        "ffcv": over("arrays: fastssl, beton", "arrays: ffcv's DatasetWriter"),
        "ffcv_both_formats": over("arrays: fastssl, both", "arrays: ffcv's DatasetWriter"),
        "pillow": over("photos: fastssl", "photos: one Pillow process"),
    }
    return {
        "what": "convert",
        "environment": environment(),
        "settings": {
            "arrays": asked.arrays,
            "photos": asked.photos,
            "workers": asked.workers,
            "repetitions": asked.repetitions,
            "pictures": "one's own" if asked.folder else "drawn, 500 x 375",
        },
        "results": [
            {
                "name": name,
                "rate": round(case.median, 1),
                "unit": "images/s",
                "spread": round(case.spread, 1),
                "busy": round(case.busy, 2),
            }
            for name, case in measured.items()
        ],
        "ratio": {name: value for name, value in ratio.items() if value is not None},
    }
