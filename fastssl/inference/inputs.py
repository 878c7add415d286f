"""What people hand to a model: paths, folders, globs, lists, pictures, arrays, tensors."""

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

_WANTED = "give a path, a PIL image, an array or a tensor [H, W, 3] or [3, H, W], or a list of them"


def is_many(x: Any) -> bool:
    """Tell whether an input is several pictures: a list, or a batch in one array."""
    return isinstance(x, list | tuple) or (hasattr(x, "ndim") and x.ndim == 4)


def to_image(x: Any) -> Image.Image:
    """Return an input as an upright RGB picture, exactly as `convert` would open it."""
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
        raise DataError(f"{name}{error}", "give another picture") from None
    raise DataError(f"a {type(x).__name__} is not a picture", _WANTED)


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bring an array to uint8 [H, W] or [H, W, 3 or 4]; floats are in 0..1."""
    shape = array.shape
    if array.ndim == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or 0 in shape or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise DataError(f"an array of shape {shape} is not a picture", _WANTED)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"the floats of a picture lie in {low:.4g} to {high:.4g}, not in 0 to 1",
                "divide by 255, or give uint8; normalisation is done here",
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise DataError(f"an array of {array.dtype} is not a picture", "give uint8, or floats")
    return np.ascontiguousarray(array)


def files(words: Iterable[str], lines: Iterable[str]) -> Iterator[str]:
    """Yield the picture files that words stand for: files, folders, globs, `-` for `lines`.

    A folder is walked to its end, in order, for the file names of pictures. A word that stands
    for nothing is yielded as it is, to be told of with the unreadable files.
    """
    for word in words:
        if word == "-":
            yield from (line.rstrip("\r\n") for line in lines if line.strip())
        elif os.path.isdir(word):
            yield from Scan(Path(word)).pictures()
        elif os.path.lexists(word) or not glob.has_magic(word):
            yield word
        else:
            for found in sorted(glob.glob(word, recursive=True)) or [word]:
                yield from Scan(Path(found)).pictures() if os.path.isdir(found) else (found,)


def is_store(word: str) -> bool:
    """Tell whether a word is the folder of a converted data set."""
    from pipelines.store.manifest import NAME

    return (Path(word) / NAME).is_file()
