"""Photos end to end, against Pillow in a DataLoader, plain FFCV and plain DALI.

The Pillow pipeline starts from the original files. Plain FFCV and DALI decode the files of our
store with their own readers.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fastssl.profiling import photos
from fastssl.profiling.measure import interleave, rate
from fastssl.profiling.photos import MEAN, PADDING, SIZE, STD, STORED, STREAMING
from fastssl.profiling.subjects import PhotosOptions
from fastssl.profiling.views import Work
from tools.bench.plain_readers import plain_dali, plain_ffcv
from tools.bench.view_peers import Loading, PillowViews


class PhotoViews(PillowViews):
    """Decodes and resizes a file, then makes both views with Pillow."""

    def __init__(self, files: list[Path], work: Work) -> None:
        super().__init__(work)
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        with Image.open(self._files[index]) as opened:
            image = opened.convert("RGB").resize((STORED, STORED), Image.Resampling.BILINEAR)
        return self._weak(image), self._strong(image)


def run(options: PhotosOptions) -> dict[str, Any]:
    """Measure our readers and the peers; return the record."""
    files = photos.find_photos(Path(options.folder))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = photos.make_store(files, Path(folder) / "photos")
        pillow = open_pillow(files, options)
        stack.callback(pillow.close)
        views = interleave(
            {"pil": lambda: rate(pillow.epoch), **photos.view_cases(store, options, stack)},
            options.repetitions,
        )
        size = options.threads, options.batch, options.batches
        plain = {"plain ffcv": plain_ffcv(store, *size), "plain dali": plain_dali(store, *size)}
        decoded = interleave({**plain, **photos.decode_cases(store, options)}, options.repetitions)
    record = photos.record(options, len(files), views, decoded)
    best = photos.fastest_reader(views)
    ratio = {"pil": views[f"fastssl {best}"].median / views["pil"].median}
    for name in STREAMING:
        ratio[name] = decoded[f"reader {name}"].median / decoded[f"plain {name}"].median
    record["ratio"] = {name: round(value, 3) for name, value in ratio.items()}
    return record


def open_pillow(files: list[Path], options: PhotosOptions) -> Loading:
    """Open the Pillow pipeline; it is slow and gets an eighth of the images."""
    count = max(options.batches // 8, 1) * options.batch
    repeated = (files * -(-count // len(files)))[:count]
    work = Work(np.empty((count, 1, 1, 3), np.uint8), SIZE, options.batch, PADDING, MEAN, STD)
    return Loading(PhotoViews(repeated, work), work, options.threads, most=options.batches)
