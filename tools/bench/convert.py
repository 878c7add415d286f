"""Our conversion against FFCV's own writer (arrays) and one Pillow process (photos).

Our time includes checksums and syncing to disk; that of FFCV does not.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from fastssl.profiling import convert
from fastssl.profiling.convert import PHOTO_SIZE, QUALITY, timed
from fastssl.profiling.measure import Measured, interleave
from fastssl.profiling.subjects import ConvertOptions
from pipelines.extras import import_problem

FFCV, PILLOW = "arrays: ffcv's DatasetWriter", "photos: one Pillow process"
RATIOS = {
    "ffcv": ("arrays: fastssl, beton", FFCV),
    "ffcv_both_formats": ("arrays: fastssl, both", FFCV),
    "pillow": ("photos: fastssl", PILLOW),
}


def run(options: ConvertOptions) -> dict[str, Any]:
    """Measure our conversion and the peers; return the record."""
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as name:
        folder = Path(name)
        if options.arrays:
            arrays = convert.make_arrays(options.arrays)
            cases = convert.array_cases(options, folder, *arrays)
            if not import_problem("ffcv"):
                cases[FFCV] = timed(
                    folder, options.arrays, lambda out: write_ffcv(out, *arrays, options.workers)
                )
            measured |= interleave(cases, options.repetitions)
        if options.photos:
            files = convert.find_photos(options, folder)
            cases = convert.photo_cases(options, folder, files)
            cases[PILLOW] = timed(
                folder, options.photos, lambda out: [resize_with_pillow(path) for path in files]
            )
            measured |= interleave(cases, options.repetitions)
    record = convert.record(options, measured)
    record["ratio"] = {
        name: round(measured[ours].median / measured[theirs].median, 2)
        for name, (ours, theirs) in RATIOS.items()
        if ours in measured and theirs in measured
    }
    return record


def write_ffcv(out: Path, images: Any, labels: Any, workers: int) -> None:
    """Write arrays as a user of FFCV does."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    samples = [(image, int(labels[index]), index) for index, image in enumerate(images)]
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField(), "index": IntField()}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        DatasetWriter(str(out), fields, num_workers=workers).from_indexed_dataset(samples)


def resize_with_pillow(path: str) -> int:
    """Decode, resize and encode one photo in memory; return its size in bytes."""
    with Image.open(path) as image:
        small = image.convert("RGB").resize((PHOTO_SIZE, PHOTO_SIZE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY)
    return file.tell()
