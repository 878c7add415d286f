"""Pillow's bicubic and bilinear resize, compiled: the same pixels in less time.

Pillow weights pixels by integers, first across and then down; an image that is much taller than
the result is resized down first. The sums here are the same, over many pixels at a time.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return, import-untyped"
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipelines.jit import njit_cached

Array = np.ndarray[Any, Any]

BITS = 22  # of a weight, after the point
HALF = 1 << (BITS - 1)
ROWS = 16  # resized together, so that a processor's vectors are filled
LANES = 3 * ROWS


@njit
def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return 0.0


@njit
def _triangle(x: float) -> float:
    return max(1.0 - abs(x), 0.0)


@njit
def _weigh(length: int, begin: float, end: float, side: int, bilinear: bool) -> Any:
    """Return, for each new pixel, the first old one it is made of, how many, and their weights."""
    scale = (end - begin) / side
    wide = max(scale, 1.0)
    support = (1.0 if bilinear else 2.0) * wide
    first, count = np.empty(side, np.int64), np.empty(side, np.int64)
    weights = np.empty((side, int(np.ceil(support)) * 2 + 1), np.int32)
    shares = np.empty(weights.shape[1])
    for pixel in range(side):
        center = begin + (pixel + 0.5) * scale
        low = max(int(center - support + 0.5), 0)
        number = min(int(center + support + 0.5), length) - low
        total = 0.0
        for tap in range(number):
            x = (tap + low - center + 0.5) * (1.0 / wide)
            shares[tap] = _triangle(x) if bilinear else _bicubic(x)
            total += shares[tap]
        for tap in range(number):
            share = shares[tap] / total * (1 << BITS)
            weights[pixel, tap] = int(share + (-0.5 if share < 0 else 0.5))
        first[pixel], count[pixel] = low, number
    return first, count, weights


@njit
def _level(total: int) -> int:
    return min(max(total >> BITS, 0), 255)


@njit
def _across(lines: Array, begin: float, end: float, side: int, bilinear: bool) -> Array:
    """Resize lines of pixels, [height, width * 3], each by itself."""
    height, width = lines.shape[0], lines.shape[1] // 3
    first, count, weights = _weigh(width, begin, end, side, bilinear)
    out = np.empty((height, side * 3), np.uint8)
    tile, made = np.empty((width * 3, ROWS), np.uint8), np.empty((side * 3, ROWS), np.uint8)
    pixels, new = tile.reshape(width, LANES), made.reshape(side, LANES)
    sums = np.empty(LANES, np.int32)
    for top in range(0, height, ROWS):
        rows = min(ROWS, height - top)
        for row in range(rows):
            for x in range(width * 3):
                tile[x, row] = lines[top + row, x]
        for x in range(side):
            sums[:] = HALF
            for tap in range(count[x]):
                weight, pixel = weights[x, tap], pixels[first[x] + tap]
                for lane in range(LANES):
                    sums[lane] += np.int32(pixel[lane]) * weight
            for lane in range(LANES):
                new[x, lane] = _level(sums[lane])
        for row in range(rows):
            for x in range(side * 3):
                out[top + row, x] = made[x, row]
    return out


@njit
def _down(lines: Array, first: Array, count: Array, weights: Array) -> Array:
    """Make new lines, each a weighted sum of old ones."""
    side, length = len(first), lines.shape[1]
    out = np.empty((side, length), np.uint8)
    sums = np.empty(length, np.int32)
    for y in range(side):
        sums[:] = HALF
        for tap in range(count[y]):
            weight, line = weights[y, tap], lines[first[y] + tap]
            for x in range(length):
                sums[x] += np.int32(line[x]) * weight
        for x in range(length):
            out[y, x] = _level(sums[x])
    return out


# Read-only is what Pillow gives: its pixels are not ours to change.
@njit_cached(
    "uint8[:,:,::1](Array(uint8, 3, 'C', readonly=True), UniTuple(float64, 4), int64, boolean)"
)
def resize(
    pixels: Array, box: tuple[float, float, float, float], side: int, bilinear: bool
) -> Array:
    """Resize the part of an image within a box (left, top, right, bottom) to side x side."""
    height, width, _ = pixels.shape
    left, top, right, bottom = box
    lines = pixels.reshape(height, width * 3)
    first, count, weights = _weigh(height, top, bottom, side, bilinear)
    if height > side and 2 * width < height + side:
        out = _across(_down(lines, first, count, weights), left, right, side, bilinear)
    else:
        above, below = first[0], first[-1] + count[-1]
        first -= above
        kept = _across(lines[above:below], left, right, side, bilinear)
        out = _down(kept, first, count, weights)
    return out.reshape(side, side, 3)
