"""Images and labels in a `.npz`, streamed from it: nothing is unpickled, nothing loaded whole."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.errors import ConfigError, DataError
from pipelines.sources import (
    MOST_PIXELS,
    Chunk,
    Labels,
    Source,
    SourceOptions,
    SourceSplit,
    array_chunks,
    chunk_length,
)
from pipelines.sources.folder import side_for
from pipelines.sources.hold_out import FRACTION, describe, held_out
from pipelines.store.index import MOST_CLASSES, MOST_IMAGES

MOST_BYTES = 2**30  # of labels or class names in memory
_HINT = (
    "save it by numpy.savez(FILE, images=..., labels=...): uint8 [n, height, width, 3] and "
    "n integers (-1: no label) or strings"
)


def source(path: Path, options: SourceOptions) -> Source:
    """Return the arrays `images`, `labels` and, if they are there, `test_images`, `test_labels`."""
    try:
        # NumPy leaves a file open that it opened itself and found damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            known = set(content.files)
            texts = sorted(name for name in known if name.endswith(("labels", "names")))
            for name in texts:  # a small file may unpack to one that fills the memory
                _check_size(content.zip, name)
            raw = {name: content[name] for name in texts}
    except Exception as error:  # damaged archives raise nearly anything
        raise DataError(f"{path} cannot be read: {error}", _HINT) from None
    if not {"images", "labels"} <= known:
        raise DataError(f"{path} holds {', '.join(sorted(known))}", _HINT)
    names = _names(raw)
    if not names:
        raise DataError(f"{path} names no class", _HINT)
    labels = _numbers(raw["labels"], names)
    images = _open(path, "images", len(labels))
    share = 0.0
    chosen = np.zeros(len(labels), bool)
    if "test_images" in known and "test_labels" in known:
        if options.test_fraction is not None:
            raise ConfigError(f"--test-fraction is given, and {path} has test_images", "omit it")
        test_labels = _numbers(raw["test_labels"], names)
        test_images = _open(path, "test_images", len(test_labels))
        test = _split(test_images, test_labels, np.ones(len(test_labels), bool))
    else:
        share = FRACTION if options.test_fraction is None else options.test_fraction
        chosen = held_out(labels, [str(index) for index in range(len(labels))], share, options.seed)
        test_labels, test = labels[chosen], _split(images, labels, chosen)
    notes, warnings = describe(names, labels[~chosen], test_labels, share)
    splits = {"train": _split(images, labels, ~chosen), "test": test}
    return Source(
        name=path.stem,
        class_names=names,
        splits={name: split for name, split in splits.items() if split.count},
        resize="crop",
        notes=notes,
        warnings=warnings,
    )


def _names(raw: dict[str, npt.NDArray[Any]]) -> list[str]:
    if "class_names" in raw:
        return [str(name) for name in raw["class_names"].reshape(-1)]
    labels = raw["labels"]
    if labels.dtype.kind == "U":
        return sorted({str(label) for label in labels.reshape(-1)} - {""})
    if labels.dtype.kind not in "iu" or not labels.size:
        raise DataError(f"labels are {labels.dtype}, {labels.shape}", _HINT)
    if not 0 <= labels.max() < MOST_CLASSES:
        raise DataError(
            f"the largest label is {labels.max()}, not a class from 0 to {MOST_CLASSES - 1}", _HINT
        )
    return [str(number) for number in range(int(labels.max()) + 1)]


def _numbers(labels: npt.NDArray[Any], names: list[str]) -> Labels:
    """Return labels as class numbers, -1 for none."""
    flat = labels.reshape(-1)
    if flat.dtype.kind == "U":
        number_of = {"": -1, **{name: number for number, name in enumerate(names)}}
        unknown = sorted({str(one) for one in flat} - set(number_of))
        if unknown:
            raise DataError(f"the label {unknown[0]!r} is not a class", "look at class_names")
        return np.array([number_of[str(one)] for one in flat], np.int64)
    if flat.dtype.kind not in "iu" or not len(flat) or flat.min() < -1 or flat.max() >= len(names):
        raise DataError(f"labels are {flat.dtype}, not -1 to {len(names) - 1}", _HINT)
    return flat.astype(np.int64)


def _check_size(archive: zipfile.ZipFile, name: str) -> None:
    """Raise if the header of an array announces more than so many labels or names may take."""
    with archive.open(f"{name}.npy") as file:
        shape, _, dtype = _header(file)
    if math.prod(shape) > MOST_IMAGES or math.prod(shape) * dtype.itemsize > MOST_BYTES:
        raise ValueError(f"{name} has the shape {shape} and the type {dtype}, too many or too long")


class _Images(NamedTuple):
    """An array of images inside a `.npz`."""

    path: Path
    name: str
    shape: tuple[int, ...]  # [n, H, W], [n, H, W, 1] or [n, H, W, 3]


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)  # type: ignore[no-any-return, no-untyped-call]
    return np.lib.format.read_array_header_2_0(file)  # type: ignore[no-any-return, no-untyped-call]


def _open(path: Path, name: str, count: int) -> _Images:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            shape, fortran, dtype = _header(file)
    except Exception as error:
        raise DataError(f"{path}: {name} cannot be read: {error}", _HINT) from None
    colored = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
    fits = len(shape) >= 3 and 0 < math.prod(shape[1:3]) <= MOST_PIXELS
    if dtype != np.uint8 or fortran or not colored or shape[0] != count or not fits:
        order = " in Fortran order" if fortran else ""
        raise DataError(f"{path}: {name} is {dtype} {shape}{order}, for {count} labels", _HINT)
    return _Images(path, name, shape)


def _split(images: _Images, labels: Labels, chosen: Labels) -> SourceSplit:
    height, width = images.shape[1:3]
    size = side_for([(width, height)])
    return SourceSplit(
        int(chosen.sum()),
        size,
        lambda: _chunks(images, labels, chosen),
        kept=width == height == size,
    )


def _chunks(images: _Images, labels: Labels, chosen: Labels) -> Iterator[Chunk]:
    """Read the chosen images a few at a time, gray ones turned into color."""
    one = math.prod(images.shape[1:])
    with zipfile.ZipFile(images.path) as archive, archive.open(f"{images.name}.npy") as file:
        _header(file)
        step = chunk_length(one)
        for start in range(0, len(labels), step):
            part = slice(start, start + step)
            count = len(labels[part])
            try:
                data = file.read(count * one)
            except Exception as error:  # of the archive, or of what unpacks it
                raise DataError(f"{images.path} is damaged: {error}", _HINT) from None
            if len(data) != count * one:
                raise DataError(f"{images.path} ends within {images.name}", _HINT)
            pixels = np.frombuffer(data, np.uint8).reshape(count, *images.shape[1:3], -1)
            pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3))[chosen[part]]
            indices = start + np.flatnonzero(chosen[part])
            name = f"{images.path.name}:{images.name}"
            yield from array_chunks(pixels, labels[indices], name, indices.tolist())
