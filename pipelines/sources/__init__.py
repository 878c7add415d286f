"""Readers of raw data: each module turns what a publisher ships, or a user has, into chunks.

A reader of a standard dataset is a function `(entry, root, options) -> Source`; its entry in
`pipelines.datasets` names it. Nothing here writes a store or knows the table of datasets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Strings, so that the table of datasets is imported without NumPy.
Pixels: TypeAlias = "npt.NDArray[np.uint8]"  # [n, H, W, 3]
Labels: TypeAlias = "npt.NDArray[Any]"  # [n] integers, -1 for no label
Triple = tuple[float, float, float]  # red, green, blue

ARRAY_CHUNK = 512  # images, or as many as CHUNK_BYTES hold
CHUNK_BYTES = 1 << 24
MOST_PIXELS = 100_000_000  # of an image; more are refused before anything is decoded
FILE_CHUNK = 8  # image files


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a user may choose about raw data; None stands for the default of the dataset."""

    # Of a standard dataset:
    root: Path | None = None  # folder of the publisher's files
    download: bool = False
    no_extra: bool = False  # SVHN without its extra training images
    # Of one's own images:
    unlabeled: Path | None = None  # folder of images without a label
    labels: Path | None = None  # CSV file of path,label; all other images have no label
    no_labels: bool = False  # no image has a label yet
    train_list: Path | None = None  # the same, but all other images are left out
    test: Path | None = None  # folder of class folders
    test_list: Path | None = None  # CSV file of path,label
    test_fraction: float | None = None
    seed: int = 0  # of the choice of test images
    follow: bool = False  # follow symbolic links that leave the folder

    def __post_init__(self) -> None:
        """Refuse values that contradict each other or are out of range."""
        for keys in (("test", "test_list", "test_fraction"), ("labels", "train_list")):
            given = [key for key in keys if getattr(self, key) is not None]
            if len(given) > 1:
                flags = " and ".join(f"--{key.replace('_', '-')}" for key in given)
                raise ConfigError(f"{flags} are both given", "give one of them")
        if self.no_labels and (self.labels or self.train_list or self.test or self.test_list):
            raise ConfigError("--no-labels is given with labels", "remove one of the two")
        if self.test_fraction is not None and not 0 <= self.test_fraction < 1:
            raise ConfigError(
                f"a test fraction of {self.test_fraction} is out of range",
                "use a number from 0 up to, but not including, 1",
            )


@dataclass(frozen=True)
class Chunk:
    """Some images of one split in their order: pixels, or the names of image files."""

    labels: Labels
    paths: Sequence[str]  # where each image comes from, for index.csv
    images: Pixels | None = None
    files: Sequence[str] = ()  # image files to open if `images` is None


@dataclass(frozen=True)
class SourceSplit:
    """One split of raw data, read once from beginning to end."""

    count: int
    size: int  # side of a stored image unless --size is given
    chunks: Callable[[], Iterator[Chunk]]
    kept: bool = False  # True if the pixels have that size already


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
    notes: list[str] = field(default_factory=list)  # printed for the user
    warnings: list[str] = field(default_factory=list)
    pseudo_labels: int = 0  # training labels that a model chose


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A standard dataset: all that is known about it before a byte is read."""

    name: str
    description: str
    terms: str  # of use, as its publisher states them; `convert` prints them once
    reader: str  # "module:function" in pipelines.sources, imported when it is needed
    page: str = ""  # of the publisher; empty if the data comes with a library
    folder: str = ""  # that the publisher's archive unpacks to
    files: Mapping[str, str] = field(default_factory=dict)  # published file -> its MD5
    # Where `--download` finds them: in an archive, or if there is none, each under `page`. No
    # files are listed if a person must agree to the terms first.
    archive: str = ""
    archive_md5: str = ""
    optional: tuple[str, ...] = ()  # files that --no-extra leaves out
    classes: int
    class_names: tuple[str, ...] | None = None  # None if the publisher's files name them
    size: int  # side of a view, and of a stored image
    train_size: int | None = None  # side of a stored training image if it is another
    train: int  # number of images
    test: int
    mean: Triple  # of pixels in 0..1
    std: Triple
    flip: bool = True  # True if a mirrored image is as good an example
    padding: int = 4  # reflected border of the weak view's random crop, in pixels
    resize: str = "squash"

    @property
    def bundled(self) -> bool:
        """Return True if the data comes with a library and needs no files."""
        return not self.page

    def open(self, root: Path, options: SourceOptions) -> Source:
        """Return the raw data, read from the publisher's files under `root`."""
        module, function = self.reader.split(":")
        source: Source = getattr(importlib.import_module(module), function)(self, root, options)
        return source

    def source(
        self,
        class_names: Sequence[str],
        splits: dict[str, SourceSplit],
        notes: Sequence[str] = (),
    ) -> Source:
        """Return a source with the name, terms and statistics of this entry."""
        return Source(
            name=self.name,
            class_names=list(class_names),
            splits=splits,
            resize=self.resize,
            terms=self.terms,
            mean=self.mean,
            std=self.std,
            notes=list(notes),
        )


def chunk_length(image_bytes: int) -> int:
    """Return how many images make a chunk: large ones would fill the memory of all workers."""
    return max(min(ARRAY_CHUNK, CHUNK_BYTES // max(image_bytes, 1)), 1)


def array_chunks(
    images: Pixels, labels: Labels, name: str, indices: Sequence[int] | None = None
) -> Iterator[Chunk]:
    """Cut arrays in memory into chunks; an image is named by its file and its index in it."""
    import numpy as np

    indices = range(len(images)) if indices is None else indices
    step = chunk_length(images[:1].nbytes)
    for start in range(0, len(images), step):
        part = slice(start, start + step)
        paths = [f"{name}:{index}" for index in indices[part]]
        yield Chunk(labels[part], paths, images=np.ascontiguousarray(images[part]))


def file_chunks(files: Sequence[str], labels: Labels, paths: Sequence[str]) -> Iterator[Chunk]:
    """Cut a list of image files into chunks."""
    for start in range(0, len(files), FILE_CHUNK):
        part = slice(start, start + FILE_CHUNK)
        yield Chunk(labels[part], paths[part], files=files[part])
