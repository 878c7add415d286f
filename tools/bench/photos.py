"""Photos end to end: from a store of 256-pixel JPEG to normalized views of 224 pixels.

Every reader is measured with the views and, where it streams, decoding alone. The peers are Pillow
in a DataLoader, which starts from the original files, and plain FFCV and plain DALI, which decode
the files of our store with their own readers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastssl.errors import DataError
from fastssl.profiling.measure import Case, Measured, interleave, make_record, rate
from fastssl.profiling.views import Work
from pipelines.convert import Options as Conversion
from pipelines.convert import convert
from pipelines.loader.loader import Loader
from pipelines.readers import READERS, Indices, Reader
from pipelines.sampling.order import Order
from pipelines.sampling.split import Split
from pipelines.sources import Source, SourceSplit, file_chunks
from pipelines.store.store import Store, open_store
from pipelines.views import recipes
from tools.bench.plain_readers import plain_dali, plain_ffcv
from tools.bench.subjects import PhotosOptions
from tools.bench.view_peers import Loading, PillowViews

STORED, SIZE, PADDING = 256, 224, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STREAMING = ("ffcv", "dali")


class PhotoViews(PillowViews):
    """Decodes and resizes a file, then makes both views with Pillow."""

    def __init__(self, files: list[Path], work: Work) -> None:
        super().__init__(work)
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        with Image.open(self._files[index]) as opened:
            image = opened.convert("RGB").resize((STORED, STORED), Image.Resampling.BILINEAR)
        return self._weak(image), self._strong(image)


def run(options: PhotosOptions) -> dict[str, Any]:
    """Measure our readers and the peers; return the record."""
    files = find_photos(Path(options.folder))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = make_store(files, Path(folder) / "photos")
        pillow = open_pillow(files, options)
        stack.callback(pillow.close)
        views = interleave(
            {"pil": lambda: rate(pillow.epoch), **view_cases(store, options, stack)},
            options.repetitions,
        )
        size = options.threads, options.batch, options.batches
        plain = {"plain ffcv": plain_ffcv(store, *size), "plain dali": plain_dali(store, *size)}
        decoded = interleave({**plain, **decode_cases(store, options)}, options.repetitions)
    return record(options, len(files), views, decoded)


def open_pillow(files: list[Path], options: PhotosOptions) -> Loading:
    """Open the Pillow pipeline; it is slow and gets an eighth of the images."""
    count = max(options.batches // 8, 1) * options.batch
    repeated = (files * -(-count // len(files)))[:count]
    work = Work(np.empty((count, 1, 1, 3), np.uint8), SIZE, options.batch, PADDING, MEAN, STD)
    return Loading(PhotoViews(repeated, work), work, options.threads, most=options.batches)


def find_photos(folder: Path) -> list[Path]:
    """Return the photos under a folder."""
    suffixes = {".jpg", ".jpeg", ".png"}
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    if not files:
        raise DataError(f"{folder} holds no photos", "name a folder of JPEG or PNG files")
    return files


def make_store(files: list[Path], path: Path) -> Store:
    """Convert photos to a store in both formats."""
    names = [str(file) for file in files]
    labels = np.zeros(len(files), np.int64)
    split = SourceSplit(len(files), STORED, lambda: file_chunks(names, labels, names))
    source = Source(
        name="photos",
        class_names=["photo"],
        splits={"train": split},
        resize="squash",
        mean=MEAN,
        std=STD,
    )
    convert(source, path, Conversion(formats=STREAMING))
    return open_store(path)


def open_loader(store: Store, reader: str, options: PhotosOptions) -> Loader:
    """Open a loader that makes a weak and a strong view of each unlabeled photo."""
    count = store.splits["train"].count
    copies = -(-options.batch // count)  # in a small folder, a batch holds a photo several times
    indices = np.tile(np.arange(count), copies)
    return Loader(
        store,
        Split(indices[:0], indices, indices[:0]),
        Order(0, 0, len(indices), 0, options.batch),
        views={"weak": "weak", "strong": "strong"},
        recipes=recipes(flip=True, padding=PADDING, size=(SIZE, SIZE)),
        seed=0,
        reader=reader,
        threads=options.threads,
    )


def view_cases(store: Store, options: PhotosOptions, stack: ExitStack) -> dict[str, Case]:
    """Return the cases that read, decode and make views; each returns views per second."""

    def case(loader: Loader) -> Case:
        def views() -> int:
            batches = loader.iterate(0, options.batches)
            return sum(len(view) for batch in batches for view in batch.views.values())

        return lambda: rate(views)

    return {
        f"fastssl {name}": case(stack.enter_context(open_loader(store, name, options)))
        for name in (*STREAMING, "resident")
    }


def decode_cases(store: Store, options: PhotosOptions) -> dict[str, Case]:
    """Return the cases that read and decode only; each returns images per second."""
    count = store.splits["train"].count

    def indices() -> Iterator[Indices]:
        random = np.random.default_rng(0)
        for _ in range(options.batches):
            yield random.integers(0, count, options.batch)

    def case(reader: Reader) -> Case:
        return lambda: rate(lambda: sum(len(batch) for batch in reader.stream(indices())))

    return {
        f"reader {name}": case(READERS[name].open(store, "train", threads=options.threads))
        for name in STREAMING
    }


def record(
    options: PhotosOptions,
    count: int,
    views: Mapping[str, Measured],
    decoded: Mapping[str, Measured],
) -> dict[str, Any]:
    """Return the record."""
    best = max(STREAMING, key=lambda name: views[f"fastssl {name}"].median)
    ours = views[f"fastssl {best}"].median
    share = ours / 2 / decoded[f"reader {best}"].median
    ratio = {"pil": ours / views["pil"].median}
    for name in STREAMING:
        ratio[name] = decoded[f"reader {name}"].median / decoded[f"plain {name}"].median
    # only the folder's name, so that the record holds no path of this machine
    settings = {**asdict(options), "folder": Path(options.folder).name, "photographs": count}
    return make_record(
        "photos",
        {**settings, "stored": STORED, "size": SIZE},
        [
            case.row(
                name,
                unit,
                threads=options.threads,
                cpu_us=round(1e6 * case.busy / case.median, 2),
            )
            for measured, unit in ((views, "views/s"), (decoded, "images/s"))
            for name, case in measured.items()
        ],
        {name: round(value, 3) for name, value in ratio.items()},
        says=(
            f"Streamed by {best}, decoding takes {share:.0%} of the time of a pair of views; the "
            "rest is the view kernel. Where memory allows, reader=resident decodes once."
        ),
    )
