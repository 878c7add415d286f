"""Views on a CPU: all views of an image from one read, without the GIL, bit-exact to Pillow.

The compiled code is cached on disk, so that only the first start compiles. Functions of other files
are compiled into it, so their stamp is part of the cache's key (`pipelines.jit`).
"""

# mypy: disable-error-code="untyped-decorator, no-any-return, import-untyped"
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from pipelines.jit import njit_cached, stamp
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


# The views of one call are float32 arrays of different sizes, as many as the algorithm declares.
# Numba accepts neither a Python list of arrays without a slow conversion per call, nor a tuple
# without compiling again for each number of views. So the kernel gets the addresses as int64 [V]
# and turns each into a pointer, for which numba has no function of its own. The caller keeps the
# arrays alive and has checked type, shape and contiguity (`apply_views.apply`).
@intrinsic
def _floats_at(_: Any, address: Any) -> Any:
    def build(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.intp), build


@njit
def _augment(
    a: Array, b: Array, height: int, width: int, row: Array, counts: Array, lut: Array, sums: Array
) -> Array:
    """Apply the drawn ops and Cutout to `a`; return the buffer, `a` or `b`, with the result."""
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
            at = (y * width + x) * 3
            a[at], a[at + 1], a[at + 2] = FILL
    return a


@njit
def _reflected(i: int, length: int) -> int:
    i = abs(i)
    return i if i < length else 2 * (length - 1) - i


@njit
def _columns(row: Array, width: int, padding: int, offsets: Array) -> None:
    """Write, for each column of the view, the offset of its bytes in a row of the image."""
    for x in range(len(offsets)):
        column = _reflected(x + row[1] - padding, width)
        offsets[x] = 3 * (width - 1 - column if row[2] else column)


@njit
def _finish(
    src: Array, out: Array, size: Array, row: Array, geometry: Array, offsets: Array, table: Array
) -> None:
    """Flip, pad, crop and map each byte by the table of its channel, in one pass."""
    red, green, blue = table[0], table[1], table[2]
    for y in range(geometry[0]):
        line = _reflected(y + row[0] - geometry[2], size[0]) * size[1] * 3
        view = out[y * geometry[1] * 3 : (y + 1) * geometry[1] * 3]
        for x in range(len(offsets)):
            at = np.uint64(line + offsets[x])  # unsigned: numba then omits the test for negatives
            view[3 * x] = red[src[at]]
            view[3 * x + 1] = green[src[at + np.uint64(1)]]
            view[3 * x + 2] = blue[src[at + np.uint64(2)]]


def _given(kind: Any, dimensions: int) -> Any:  # accepts read-only and writable arrays
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
    @njit_cached(SIGNATURE, nogil=True)
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

        `draws` is [views, images, columns]. `geometry` has, for each view, the height, width and
        padding, whether ops come first, and whether there are any. `addresses` are those of the
        float32 [images, height, width, 3] of each view. `table` normalizes each byte.
        """
        _ = stamp  # so that the function closes over it
        # Work buffers are allocated once per call, not once per image.
        size = np.array((images.shape[1], images.shape[2]))
        area = max(size[0] * size[1], (geometry[:, 0] * geometry[:, 1]).max()) * 3
        one, other = np.empty(area, np.uint8), np.empty(area, np.uint8)
        lut, straight = np.empty((3, 256), np.uint8), np.zeros(HEAD, np.int32)
        counts, sums, plain = np.empty((3, 256), np.int32), np.empty(256), np.zeros(3, np.int64)
        all_offsets = np.empty(geometry[:, 1].max(), np.int64)
        same = np.arange(3 * 256).astype(np.uint8).reshape(3, 256)  # maps each byte to itself
        for i in range(first, last):
            image = images[i].reshape(-1)
            for v in range(len(geometry)):
                shape, row = geometry[v], draws[v, i]
                count = shape[0] * shape[1] * 3
                out = carray(_floats_at(addresses[v] + 4 * count * i), count)
                offsets = all_offsets[: shape[1]]
                _columns(row, size[1], shape[2], offsets)
                if shape[4] == 0:  # no op and no Cutout: straight from the image
                    _finish(image, out, size, row, shape, offsets, table)
                elif shape[3] == 1:  # ops on the whole image, then the crop
                    a, b = one[: len(image)], other[: len(image)]
                    copy(image, a)
                    a = _augment(a, b, size[0], size[1], row, counts, lut, sums)
                    _finish(a, out, size, row, shape, offsets, table)
                else:
                    # The crop first, then ops on the view. With `straight` and `plain`, `_finish`
                    # moves no pixel.
                    a, b = one[:count], other[:count]
                    _finish(image, a, size, row, shape, offsets, same)
                    a = _augment(a, b, shape[0], shape[1], row, counts, lut, sums)
                    _columns(straight, shape[1], 0, offsets)
                    plain[0], plain[1] = shape[0], shape[1]
                    _finish(a, out, plain, straight, plain, offsets, table)

    return views


views = _compiled(
    stamp(*(Path(__file__).with_name(name) for name in ("kernel_cpu_ops.py", "ops.py")))
)
