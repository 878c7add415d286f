"""The inputs of `predict`: paths, folders, globs, lists, images, arrays, tensors."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fastssl.errors import DataError
from pipelines.convert.images import BadImageError, load, to_rgb
from pipelines.sources.scan import Scan

_ACCEPTED = "give a path, a PIL image, an array or tensor [H, W, 3] or [3, H, W], or a list of them"


def is_many(x: Any) -> bool:
    """Return True if an input is several images: a list, or a batch in one array."""
    return isinstance(x, list | tuple) or (hasattr(x, "ndim") and x.ndim == 4)


def to_image(x: Any) -> Image.Image:
    """Return an input as an upright RGB image, exactly as `convert` would open it."""
    try:
        if isinstance(x, str | os.PathLike):
            return load(os.fspath(x))
        if isinstance(x, Image.Image):
            return to_rgb(ImageOps.exif_transpose(x))
        if hasattr(x, "detach"):
            x = x.detach().cpu().numpy()
        if isinstance(x, np.ndarray):
            return to_rgb(Image.fromarray(_bytes(x)))
    except BadImageError as error:
        name = f"{os.fspath(x)!s}: " if isinstance(x, str | os.PathLike) else ""
        raise DataError(f"{name}{error}", "give another image") from None
    raise DataError(f"a {type(x).__name__} is not an image", _ACCEPTED)


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bring an array to uint8 [H, W] or [H, W, 3 or 4]; floats are in 0..1."""
    shape = array.shape
    if array.ndim == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or 0 in shape or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise DataError(f"an array of shape {shape} is not an image", _ACCEPTED)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"the floats of an image lie in {low:.4g} to {high:.4g}, not in 0 to 1",
                "divide by 255, or give uint8; fastssl normalizes them itself",
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise DataError(f"an array of {array.dtype} is not an image", "give uint8, or floats")
    return np.ascontiguousarray(array)


def files(arguments: Iterable[str], lines: Iterable[str], notes: list[str]) -> Iterator[str]:
    """Yield the image files that files, folders, globs and `-` (for `lines`) stand for.

    A folder is searched recursively, in order, for files with the suffix of an image format;
    `notes` gets a line on the others. An argument that matches no file is yielded unchanged, to be
    reported with the unreadable files.
    """
    for argument in arguments:
        if argument == "-":
            yield from (line.rstrip("\r\n") for line in lines if line.strip())
        elif os.path.isdir(argument):
            yield from _in_folder(argument, notes)
        elif os.path.lexists(argument) or not glob.has_magic(argument):
            yield argument
        else:
            for found in sorted(glob.glob(argument, recursive=True)) or [argument]:
                yield from _in_folder(found, notes) if os.path.isdir(found) else (found,)


def _in_folder(path: str, notes: list[str]) -> Iterator[str]:
    scan = Scan(Path(path))
    yield from scan.images()
    notes += [f"{path}: {note}" for note in scan.notes_on_files()]


def is_store(path: str) -> bool:
    """Return True if a path is the folder of a converted dataset."""
    from pipelines.store.manifest import NAME

    return (Path(path) / NAME).is_file()
