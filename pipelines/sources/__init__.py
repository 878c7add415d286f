"""Readers of raw data: each turns what a publisher ships into chunks of images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.datasets import DATASETS, Triple

Pixels = npt.NDArray[np.uint8]  # [n, H, W, 3]
Labels = npt.NDArray[Any]  # [n] integers, -1 for none

ARRAY_CHUNK = 512
FILE_CHUNK = 8


@dataclass(frozen=True)
class Chunk:
    """Some images of one split in their order: pixels, or the names of picture files."""

    labels: Labels
    paths: Sequence[str]  # where each image comes from, for index.csv
    images: Pixels | None = None
    files: Sequence[str] | None = None  # what to open, where there are no pixels yet


@dataclass(frozen=True)
class SourceSplit:
    """One split of raw data, read once from beginning to end."""

    count: int
    size: int  # side of a stored image unless the user says otherwise
    chunks: Callable[[], Iterator[Chunk]]
    kept: bool = False  # whether the pixels have that size already


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and why."""

    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data of any kind, ready to be converted."""

    name: str
    class_names: list[str]
    splits: dict[str, SourceSplit]
    resize: str
    terms: str = ""
    mean: Triple | None = None  # None: measure it while converting
    std: Triple | None = None
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the user should hear


def standard(
    name: str,
    class_names: Sequence[str],
    splits: dict[str, SourceSplit],
    notes: Sequence[str] = (),
) -> Source:
    """Describe a standard data set by its entry in the table."""
    entry = DATASETS[name]
    return Source(
        name=name,
        class_names=list(class_names),
        splits=splits,
        resize=entry.resize,
        terms=entry.terms,
        mean=entry.mean,
        std=entry.std,
        notes=list(notes),
    )


def array_chunks(
    images: Pixels, labels: Labels, name: str, places: Sequence[int] | None = None
) -> Iterator[Chunk]:
    """Cut arrays that are in memory into chunks; an image is named by its file and place."""
    places = range(len(images)) if places is None else places
    for start in range(0, len(images), ARRAY_CHUNK):
        part = slice(start, start + ARRAY_CHUNK)
        paths = [f"{name}:{place}" for place in places[part]]
        yield Chunk(labels[part], paths, images=images[part])


def file_chunks(files: Sequence[str], labels: Labels, paths: Sequence[str]) -> Iterator[Chunk]:
    """Cut a list of picture files into chunks."""
    for start in range(0, len(files), FILE_CHUNK):
        part = slice(start, start + FILE_CHUNK)
        yield Chunk(labels[part], paths[part], files=files[part])
