"""The draw: the random parameters of views, a pure function of (seed, step, stream, slot, view).

Random numbers are Philox4x32-10 (Salmon et al., 2011) with the seed as key and (view and stream,
slot, step) as counter. Each view has its own counter, so it can be drawn alone: in any order, on
any rank, on any machine, and after a resume without any generator state. A slot is the position
in the global batch, so R ranks draw what one process would draw.

The compiled code below repeats `ops.parameters`, so that a batch is drawn in one call without
the GIL instead of one Python call for every op of every view. Compiled code may round the last bit
of a sine or a product differently. So `_fixed` and `_parameters` report values that are near a
rounding edge, and `draw` computes those few again by `ops.parameters`, which is the reference.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return"
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types

from pipelines.jit import njit_cached, stamp
from pipelines.views.ops import (
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    HEAD,
    OPS,
    POSTERIZE,
    ROTATE,
    SHARPNESS,
    SHEAR_X,
    SHEAR_Y,
    SOLARIZE,
    TRANSLATE_X,
    TRANSLATE_Y,
    WIDTH,
    Recipe,
    parameters,
)

Array = np.ndarray[Any, Any]

_BY_CODE = sorted((OPS[name] for name in OPS), key=lambda op: op.code)
_RANGES = np.array([(op.low, op.high) for op in _BY_CODE])
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_UNIT = 2.0**-32  # turns 32 random bits into a float in [0, 1)


def draw(
    recipe: Recipe,
    *,
    seed: int,
    step: int,
    stream: int,
    slots: Array,
    view: int,
    size: tuple[int, int],
) -> Array:
    """Return int32 [slots, columns]: one row for each slot, for images of `size`.

    `ops.py` describes the columns. `stream` is 0 for labeled and 1 for unlabeled images, `view`
    the number of the view of an image.
    """
    recipe.check(size)
    slots = np.ascontiguousarray(slots, dtype=np.int64)
    rows = np.zeros((len(slots), recipe.columns), dtype=np.int32)
    doubtful = np.empty((len(slots) * recipe.ops, 3))
    key = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], dtype=np.uint64)
    counter = np.array([(stream << 24) | (view << 16), 0, step & 0xFFFFFFFF, step >> 32], np.uint64)
    seen = recipe.augmented(size)
    space = np.array(
        [size[d] + 2 * recipe.padding - recipe.size[d] + 1 for d in (0, 1)], dtype=np.int64
    )
    flags = np.array([recipe.flip, recipe.cutout], dtype=np.bool_)
    # Rows of `doubtful`: row, column and magnitude of an op that must be computed again.
    count = _draw(rows, doubtful, _RANGES, key, counter, slots, space, np.array(seen), flags)
    for row, column, magnitude in doubtful[:count]:
        code = int(rows[int(row), int(column)])
        start = int(column) + 1
        rows[int(row), start : start + WIDTH - 1] = parameters(code, float(magnitude), seen)
    return rows


def names(draws: Array) -> list[list[str]]:
    """Return the names of the ops of drawn rows, in the order in which they are applied."""
    return [[_BY_CODE[code].name for code in row[HEAD::WIDTH]] for row in draws]


@njit
def philox(k: Any, m: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the four 32-bit outputs for counter (a, b, c, d) and key (k, m), all as uint64."""
    for _ in range(10):
        first = np.uint64(0xD2511F53) * a
        second = np.uint64(0xCD9E8D57) * c
        a = (second >> _SHIFT) ^ b ^ k
        c = (first >> _SHIFT) ^ d ^ m
        b = second & _LOW_32
        d = first & _LOW_32
        k = (k + np.uint64(0x9E3779B9)) & _LOW_32
        m = (m + np.uint64(0xBB67AE85)) & _LOW_32
    return a, b, c, d


@njit
def _fixed(
    a: float, b: float, c: float, d: float, e: float, f: float, row: Array, start: int
) -> bool:
    """Write Pillow's fixed-point map; return False if a value is near a rounding edge."""
    exact = True
    values = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    for i in range(6):
        scaled = values[i] * 65536.0 + 0.5
        row[start + i] = math.floor(scaled)
        exact = exact and abs(scaled - np.rint(scaled)) > 1e-4
    return exact


@njit
def _rotate(degrees: float, seen: Array, row: Array, start: int) -> bool:
    angle = -math.radians(degrees % 360.0)
    cosine = np.rint(math.cos(angle) * 1e15) / 1e15
    sine = np.rint(math.sin(angle) * 1e15) / 1e15
    x, y = seen[1] / 2.0, seen[0] / 2.0
    shift_x = cosine * -x + sine * -y + 0.0 + x
    shift_y = -sine * -x + cosine * -y + 0.0 + y
    return _fixed(cosine, sine, shift_x, -sine, cosine, shift_y, row, start)


@njit
def _parameters(
    code: int, magnitude: float, seen: Array, row: Array, start: int, factor: Array, bits: Array
) -> bool:
    """Write what `ops.parameters` returns; return False if a value is near a rounding edge."""
    if code in (BRIGHTNESS, COLOR, CONTRAST, SHARPNESS):
        factor[0] = magnitude
        row[start] = bits[0]  # `bits` is a view of the memory of `factor`
    elif code == SOLARIZE:
        row[start] = math.ceil(magnitude)
    elif code == POSTERIZE:
        row[start] = 255 & ~((1 << (8 - min(int(magnitude), 8))) - 1)
    elif code == SHEAR_X:
        _fixed(1.0, magnitude, 0.0, 0.0, 1.0, 0.0, row, start)
    elif code == SHEAR_Y:
        _fixed(1.0, 0.0, 0.0, magnitude, 1.0, 0.0, row, start)
    elif code in (TRANSLATE_X, TRANSLATE_Y):
        axis = 1 if code == TRANSLATE_X else 0
        position = magnitude * seen[axis] + 0.5
        _fixed(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, row, start)
        row[start + 5 - 3 * axis] += math.floor(position) * 65536
        return position - math.floor(position) < 1.0 - 1e-6
    elif code == ROTATE:
        return _rotate(magnitude, seen, row, start)
    return True


@njit
def _cutout(row: Array, side: float, x: float, y: float, seen: Array) -> None:
    """Write the covered square: shifted, not clipped, at the left and top; its end is included."""
    height, width = seen[0], seen[1]
    side = side * 0.5 * width
    if side <= 0.0:
        return
    left = int(max(0.0, x * width - side / 2.0))
    top = int(max(0.0, y * height - side / 2.0))
    row[3] = left
    row[4] = top
    row[5] = min(width, int(min(float(width), left + side)) + 1)
    row[6] = min(height, int(min(float(height), top + side)) + 1)


SIGNATURE = types.int64(
    types.int32[:, ::1],
    types.float64[:, ::1],
    types.float64[:, ::1],
    types.uint64[::1],
    types.uint64[::1],
    types.Array(types.int64, 1, "C", readonly=True),
    types.int64[::1],
    types.int64[::1],
    types.bool_[::1],
)


def _compiled(stamp: str) -> Any:
    @njit_cached(SIGNATURE, nogil=True)
    def _draw(
        rows: Array,
        doubtful: Array,
        ranges: Array,
        key: Array,
        counter: Array,
        slots: Array,
        space: Array,
        seen: Array,
        flags: Array,
    ) -> int:
        """Fill the rows; return how many ops are near a rounding edge (listed in `doubtful`)."""
        _ = stamp  # so that the function closes over it
        ops = (rows.shape[1] - HEAD) // WIDTH
        blocks = 1 if ops == 0 and not flags[1] else 2 + ops // 2
        # Outputs: 0, 1 crop, 2 flip, 3 to 5 Cutout, then two for each op: which, and how strong.
        random = np.empty(4 * blocks, np.uint64)
        factor = np.empty(1, np.float32)
        bits = factor.view(np.int32)
        count = 0
        for i in range(len(slots)):
            slot = np.uint64(slots[i])
            for block in range(blocks):
                first = counter[0] | np.uint64(block)
                a, b, c, d = philox(key[0], key[1], first, slot, counter[2], counter[3])
                random[4 * block], random[4 * block + 1] = a, b
                random[4 * block + 2], random[4 * block + 3] = c, d
            row = rows[i]
            row[0] = (random[0] * np.uint64(space[0])) >> _SHIFT
            row[1] = (random[1] * np.uint64(space[1])) >> _SHIFT
            row[2] = flags[0] and random[2] >> np.uint64(31)
            if flags[1]:
                _cutout(row, random[3] * _UNIT, random[4] * _UNIT, random[5] * _UNIT, seen)
            for op in range(ops):
                code = np.int64((random[6 + 2 * op] * np.uint64(len(ranges))) >> _SHIFT)
                low = ranges[code, 0]
                magnitude = low + (ranges[code, 1] - low) * (random[7 + 2 * op] * _UNIT)
                column = HEAD + WIDTH * op
                row[column] = code
                if not _parameters(code, magnitude, seen, row, column + 1, factor, bits):
                    doubtful[count, 0] = i
                    doubtful[count, 1] = column
                    doubtful[count, 2] = magnitude
                    count += 1
        return count

    return _draw


_draw = _compiled(stamp(Path(__file__).with_name("ops.py")))
