"""Views on a CPU: every view of an image from one read, without the GIL, equal to Pillow's.

The compiled code is kept on disk, so that only the first start pays for it. Numba keeps it by the
date of this file alone; the stamp stands for the other files that are compiled into it.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return, import-untyped"
from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from pipelines.views.kernel_cpu_ops import affine, copy, point, sharpness
from pipelines.views.ops import (
    FILL,
    HEAD,
    IDENTITY,
    ROTATE,
    SHARPNESS,
    SHEAR_X,
    SOLARIZE,
    WIDTH,
)

Array = np.ndarray[Any, Any]


@intrinsic
def _floats_at(_: Any, address: Any) -> Any:  # an address as a pointer to float32
    def build(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.intp), build


@njit
def _augment(
    a: Array, b: Array, height: int, width: int, row: Array, counts: Array, lut: Array, sums: Array
) -> Array:
    """Apply the drawn ops and the Cutout; return whichever buffer holds the result."""
    for column in range(HEAD, len(row), WIDTH):
        code, p = row[column], row[column + 1 : column + WIDTH]
        if code == IDENTITY:
            continue
        if code == SHARPNESS:
            sharpness(a, b, height, width, p[:1].view(np.float32)[0])
            a, b = b, a
        elif code == ROTATE or (code >= SHEAR_X and code != SOLARIZE):
            affine(a, b, height, width, p)
            a, b = b, a
        else:
            point(a, code, p, counts, lut, sums)
    for y in range(row[4], row[6]):
        for x in range(row[3], row[5]):
            place = (y * width + x) * 3
            a[place], a[place + 1], a[place + 2] = FILL
    return a


@njit
def _reflected(place: int, length: int) -> int:
    place = abs(place)
    return place if place < length else 2 * (length - 1) - place


@njit
def _columns(row: Array, width: int, padding: int, places: Array) -> None:
    """Write, for each column of the view, where in a row of the image its bytes start."""
    for x in range(len(places)):
        place = _reflected(x + row[1] - padding, width)
        places[x] = 3 * (width - 1 - place if row[2] else place)


@njit
def _crop(src: Array, dst: Array, size: Array, row: Array, geometry: Array, places: Array) -> None:
    """Flip, pad and crop pixels."""
    for y in range(geometry[0]):
        line = _reflected(y + row[0] - geometry[2], size[0]) * size[1] * 3
        out = y * geometry[1] * 3
        for x in range(len(places)):
            place = np.uint64(line + places[x])
            dst[out + 3 * x] = src[place]
            dst[out + 3 * x + 1] = src[place + np.uint64(1)]
            dst[out + 3 * x + 2] = src[place + np.uint64(2)]


@njit
def _finish(
    src: Array, out: Array, size: Array, row: Array, geometry: Array, places: Array, table: Array
) -> None:
    """Flip, pad, crop and normalise in one pass."""
    red, green, blue = table[0], table[1], table[2]
    for y in range(geometry[0]):
        line = _reflected(y + row[0] - geometry[2], size[0]) * size[1] * 3
        view = out[y * geometry[1] * 3 : (y + 1) * geometry[1] * 3]
        for x in range(len(places)):
            place = np.uint64(line + places[x])
            view[3 * x] = red[src[place]]
            view[3 * x + 1] = green[src[place + np.uint64(1)]]
            view[3 * x + 2] = blue[src[place + np.uint64(2)]]


@njit
def _views(
    images: Array,
    draws: Array,
    geometry: Array,
    addresses: Array,
    table: Array,
    first: int,
    last: int,
) -> None:
    size = np.array((images.shape[1], images.shape[2]))
    area = max(size[0] * size[1], (geometry[:, 0] * geometry[:, 1]).max()) * 3
    one, other = np.empty(area, np.uint8), np.empty(area, np.uint8)
    lut, straight = np.empty((3, 256), np.uint8), np.zeros(HEAD, np.int32)
    counts, sums, plain = np.empty((3, 256), np.int32), np.empty(256), np.zeros(3, np.int64)
    all_places = np.empty(geometry[:, 1].max(), np.int64)
    for i in range(first, last):
        image = images[i].reshape(-1)
        for v in range(len(geometry)):
            shape, row = geometry[v], draws[v, i]
            count = shape[0] * shape[1] * 3
            out = carray(_floats_at(addresses[v] + 4 * count * i), count)
            places = all_places[: shape[1]]
            _columns(row, size[1], shape[2], places)
            if shape[4] == 0:
                _finish(image, out, size, row, shape, places, table)
            elif shape[3] == 1:
                a, b = one[: len(image)], other[: len(image)]
                copy(image, a)
                a = _augment(a, b, size[0], size[1], row, counts, lut, sums)
                _finish(a, out, size, row, shape, places, table)
            else:
                a, b = one[:count], other[:count]
                _crop(image, a, size, row, shape, places)
                a = _augment(a, b, shape[0], shape[1], row, counts, lut, sums)
                _columns(straight, shape[1], 0, places)
                plain[0], plain[1] = shape[0], shape[1]
                _finish(a, out, plain, straight, plain, places, table)


def _given(kind: Any, dimensions: int) -> Any:  # read-only or not: both are taken
    return types.Array(kind, dimensions, "C", readonly=True)


SIGNATURE = types.void(
    _given(types.uint8, 4),
    _given(types.int32, 3),
    _given(types.int64, 2),
    _given(types.int64, 1),
    _given(types.float32, 2),
    types.int64,
    types.int64,
)


def _compiled(stamp: str) -> Any:
    @njit(SIGNATURE, cache=True, nogil=True)
    def views(
        images: Array,
        draws: Array,
        geometry: Array,
        addresses: Array,
        table: Array,
        first: int,
        last: int,
    ) -> None:
        """Write every view of images `first` to `last`.

        `draws` is [views, images, columns]; `geometry` has, for each view, the height, width and
        padding, whether ops come first, and whether there are any; `addresses` say where the
        float32 [images, height, width, 3] of each view lies; `table` normalises each byte.
        """
        if len(stamp) > 0:  # what a function closes over is part of the key of its compiled code
            _views(images, draws, geometry, addresses, table, first, last)

    return views


_PARTS = (Path(__file__).with_name(name).read_bytes() for name in ("kernel_cpu_ops.py", "ops.py"))
views = _compiled(sha256(b"".join(_PARTS)).hexdigest())
