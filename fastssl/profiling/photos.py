"""Photographs end to end: from a store of 256-pixel JPEG to normalised views of 224.

Against the plain pipeline (the folder of the originals, Pillow, a DataLoader with workers), and,
for decoding alone, the readers against plain FFCV and plain DALI on the same files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastssl.errors import DataError
from fastssl.profiling.measure import Measured, environment, interleave
from fastssl.profiling.peers import Loading, PillowViews, Work
from fastssl.profiling.photos_plain import plain_dali, plain_ffcv, timed
from pipelines.convert import Options as Conversion
from pipelines.convert import convert
from pipelines.loader.loader import Loader
from pipelines.readers import READERS, Indices, Reader
from pipelines.sampling.order import Order
from pipelines.sampling.split import Split
from pipelines.sources import Source, SourceSplit, file_chunks
from pipelines.store.store import Store, open_store
from pipelines.views import recipes

STORED, SIZE, PADDING = 256, 224, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STREAMING = ("ffcv", "dali")


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    folder: Path
    """Photographs, at any depth."""
    threads: int = 2
    """Of the readers and of the views, and worker processes of the plain pipeline."""
    batch: int = 64
    """Images of a batch."""
    batches: int = 32
    """Batches of one repetition of ours; the plain pipeline makes an eighth as many."""
    repetitions: int = 5
    """Counted rounds; one more warms up."""


class PhotoViews(PillowViews):
    """The plain pipeline, from a file on disk: decode and resize, then both views."""

    def __init__(self, files: list[Path], work: Work) -> None:
        super().__init__(work)
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        with Image.open(self._files[index]) as picture:
            image = picture.convert("RGB").resize((STORED, STORED), Image.Resampling.BILINEAR)
        return self._weak(image), self._strong(image)


def run(folder: Path | str, **options: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = Options(Path(folder), **options)
    files = find(asked.folder)
    with tempfile.TemporaryDirectory() as place:
        store = store_of(files, Path(place) / "photos")
        with ExitStack() as closing:
            cases = end_to_end(store, files, asked, closing)
            measured = interleave(cases, asked.repetitions)
        decoded = interleave(decoding(store, asked), asked.repetitions)
    return record(asked, len(files), measured, decoded)


def find(folder: Path) -> list[Path]:
    """Return the photographs under a folder."""
    kinds = {".jpg", ".jpeg", ".png"}
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in kinds)
    if not files:
        raise DataError(f"{folder} holds no photographs", "name a folder of JPEG files")
    return files


def store_of(files: list[Path], place: Path) -> Store:
    """Convert photographs to a store of both formats."""
    names = [str(path) for path in files]
    labels = np.zeros(len(files), np.int64)
    split = SourceSplit(len(files), STORED, lambda: file_chunks(names, labels, names))
    splits = {"train": split}
    source = Source(
        name="photos", class_names=["photo"], splits=splits, resize="squash", mean=MEAN, std=STD
    )
    convert(source, place, Conversion(formats=STREAMING))
    return open_store(place)


def open_photos(store: Store, reader: str, asked: Options) -> Loader:
    """Open a loader that makes a weak and a strong view of unlabelled photographs alone."""
    count = store.splits["train"].count
    copies = -(-asked.batch // count)  # a small folder is gone through several times in a batch
    every = np.tile(np.arange(count), copies)
    return Loader(
        store,
        Split(every[:0], every, every[:0]),
        Order(0, 0, len(every), 0, asked.batch),
        views={"weak": "weak", "strong": "strong"},
        recipes=recipes(flip=True, padding=PADDING, size=(SIZE, SIZE)),
        seed=0,
        reader=reader,
        threads=asked.threads,
    )


def end_to_end(
    store: Store, files: list[Path], asked: Options, closing: ExitStack
) -> dict[str, Callable[[], float]]:
    """Return the cases that make views, each of which returns views per second."""

    def ours(loader: Loader) -> Callable[[], float]:
        def views() -> int:
            made = 0
            for batch in loader.iterate(0, asked.batches):
                made += sum(len(view) for view in batch.views.values())
            return made

        return lambda: timed(views)

    wanted = max(asked.batches // 8, 1) * asked.batch
    copies = (files * -(-wanted // len(files)))[:wanted]
    work = Work(np.empty((wanted, 1, 1, 3), np.uint8), SIZE, asked.batch, PADDING, MEAN, STD)
    plain = Loading(PhotoViews(copies, work), work, asked.threads, most=asked.batches)
    closing.callback(plain.close)
    cases = {"pil": lambda: timed(plain.epoch)}
    for name in (*STREAMING, "resident"):
        cases[f"fastssl {name}"] = ours(closing.enter_context(open_photos(store, name, asked)))
    return cases


def decoding(store: Store, asked: Options) -> dict[str, Callable[[], float]]:
    """Return the cases that decode and do nothing else; each returns images per second."""
    count = store.splits["train"].count

    def plan() -> Iterator[Indices]:
        random = np.random.default_rng(0)
        for _ in range(asked.batches):
            yield random.integers(0, count, asked.batch)

    def ours(reader: Reader) -> Callable[[], float]:
        def images() -> int:
            return sum(len(batch) for batch in reader.stream(plan()))

        return lambda: timed(images)

    cases: dict[str, Callable[[], float]] = {
        "plain ffcv": plain_ffcv(store, asked.threads, asked.batch, asked.batches),
        "plain dali": plain_dali(store, asked.threads, asked.batch, asked.batches),
    }
    for name in STREAMING:
        cases[f"reader {name}"] = ours(READERS[name].open(store, "train", threads=asked.threads))
    return cases


def record(
    asked: Options, count: int, views: Mapping[str, Measured], decoded: Mapping[str, Measured]
) -> dict[str, Any]:
    """Put the record together."""
    best = max(STREAMING, key=lambda name: views[f"fastssl {name}"].median)
    ratio = {"pil": views[f"fastssl {best}"].median / views["pil"].median}
    for name in STREAMING:
        ratio[name] = decoded[f"reader {name}"].median / decoded[f"plain {name}"].median
    share = views[f"fastssl {best}"].median / 2 / decoded[f"reader {best}"].median
    settings = {**asdict(asked), "folder": asked.folder.name, "photographs": count}
    return {
        "what": "photos",
        "environment": environment(),
        "settings": {**settings, "stored": STORED, "size": SIZE},
        "results": [
            *_lines(views, "views/s", asked.threads),
            *_lines(decoded, "images/s", asked.threads),
        ],
        "ratio": {name: round(value, 3) for name, value in ratio.items()},
        "says": (
            f"Streamed by {best}, decoding takes {share:.0%} of the time of a view pair; the rest "
            "is the kernel. Where memory allows, reader=resident decodes once."
        ),
    }


def _lines(measured: Mapping[str, Measured], unit: str, threads: int) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "threads": threads,
            "rate": round(case.median, 1),
            "unit": unit,
            "spread": round(case.spread, 1),
            "cpu_us": round(1e6 * case.busy / case.median, 2),
        }
        for name, case in measured.items()
    ]
