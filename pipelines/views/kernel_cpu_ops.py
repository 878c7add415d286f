"""The ops of the CPU kernel, each on one image: flat uint8, three bytes per pixel, row by row.

All arithmetic is on integers or on float32 values that represent integers exactly, except for the
blends, which round as Pillow does. `fastmath` stays off: it would allow the compiler to contract
a product and a sum into a multiply-add, which rounds once instead of twice.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return, assignment"
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipelines.views.ops import (
    AUTOCONTRAST,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    EQUALIZE,
    POSTERIZE,
    SOLARIZE,
)

Array = np.ndarray[Any, Any]
f32 = np.float32


@njit
def copy(src: Array, dst: Array) -> None:
    """Copy bytes: an explicit loop becomes a memcpy, `dst[:] = src` does not."""
    for i in range(len(dst)):
        dst[i] = src[i]


@njit
def _shift_rows(src: Array, dst: Array, height: int, width: int, p: Array) -> None:
    """Map whole rows: a translation or a horizontal shear."""
    for y in range(height):
        yin = (p[5] + p[4] * y) >> 16
        shift = (p[2] + p[1] * y) >> 16
        first = min(max(-shift, 0), width)
        last = max(min(width, width - shift), first)
        row = dst[y * width * 3 : (y + 1) * width * 3]
        if yin < 0 or yin >= height or last == first:
            row[:] = 0
            continue
        row[: first * 3] = 0
        row[last * 3 :] = 0
        start = (yin * width + shift) * 3
        copy(src[start + first * 3 : start + last * 3], row[first * 3 : last * 3])


@njit
def affine(src: Array, dst: Array, height: int, width: int, p: Array) -> None:
    """Copy each pixel from the position that Pillow's 16.16 arithmetic gives; black if outside."""
    if p[0] == 65536 and p[3] == 0:
        _shift_rows(src, dst, height, width, p)
        return
    step_x, step_y = np.int64(p[0]), np.int64(p[3])
    out = 0
    for y in range(height):
        xx = np.int64(p[2]) + np.int64(p[1]) * y
        yy = np.int64(p[5]) + np.int64(p[4]) * y
        for _ in range(width):
            xin, yin = xx >> 16, yy >> 16
            if 0 <= xin < width and 0 <= yin < height:
                at = np.uint64((yin * width + xin) * 3)
                dst[out] = src[at]
                dst[out + 1] = src[at + np.uint64(1)]
                dst[out + 2] = src[at + np.uint64(2)]
            else:
                dst[out] = 0
                dst[out + 1] = 0
                dst[out + 2] = 0
            out += 3
            xx += step_x
            yy += step_y


@njit
def _gray(red: int, green: int, blue: int) -> Any:
    # Every partial sum is an integer below 2 ** 24, so float32 is exact, and SIMD computes eight.
    total = f32(red) * f32(19595) + f32(green) * f32(38470) + f32(blue) * f32(7471) + f32(32768)
    return f32(np.int32(total * f32(2.0**-16)))


@njit
def _blend(base: Any, value: int, factor: Any) -> Any:
    mixed = base + factor * (f32(value) - base)
    return np.uint8(np.int32(min(max(mixed, f32(0)), f32(255))))


@njit
def _blend_all(a: Array, base: Any, factor: Any) -> None:
    for i in range(len(a)):
        a[i] = _blend(base, a[i], factor)


@njit
def _mean_gray(a: Array) -> Any:
    total = 0
    pixels = len(a) // 3
    for i in range(pixels):
        total += np.int32(_gray(a[3 * i], a[3 * i + 1], a[3 * i + 2]))
    return f32((2 * total + pixels) // (2 * pixels))


@njit
def _color(a: Array, factor: Any) -> None:
    for i in range(len(a) // 3):
        gray = _gray(a[3 * i], a[3 * i + 1], a[3 * i + 2])
        a[3 * i] = _blend(gray, a[3 * i], factor)
        a[3 * i + 1] = _blend(gray, a[3 * i + 1], factor)
        a[3 * i + 2] = _blend(gray, a[3 * i + 2], factor)


@njit
def sharpness(src: Array, dst: Array, height: int, width: int, factor: Any) -> None:
    """Blend with the smoothed image; Pillow's filter copies the border."""
    line = width * 3
    copy(src, dst)
    for y in range(1, height - 1):
        up, mid, low = src[(y - 1) * line :], src[y * line :], src[(y + 1) * line :]
        out = dst[y * line + 3 :]
        for i in range(line - 6):
            total = f32(up[i]) + f32(up[i + 3]) + f32(up[i + 6]) + f32(mid[i])
            total += f32(mid[i + 3]) * f32(5) + f32(mid[i + 6])
            total += f32(low[i]) + f32(low[i + 3]) + f32(low[i + 6])
            # total / 13 + 0.5 is at least 1/26 away from an integer, so rounding cannot matter.
            smooth = f32(np.int32(total * f32(1 / 13) + f32(0.5)))
            out[i] = _blend(smooth, mid[i + 3], factor)


@njit
def _histogram(a: Array, counts: Array) -> None:
    counts[:] = 0
    red, green, blue = counts[0], counts[1], counts[2]
    for i in range(0, len(a), 3):
        red[a[i]] += 1
        green[a[i + 1]] += 1
        blue[a[i + 2]] += 1


@njit
def _autocontrast(counts: Array, lut: Array) -> None:
    low, high = 0, 255
    while low < 255 and counts[low] == 0:
        low += 1
    while high > 0 and counts[high] == 0:
        high -= 1
    scale = 255.0 / (high - low) if high > low else 1.0
    offset = -low * scale if high > low else 0.0
    for i in range(256):
        value = np.float64(i) * scale + offset
        lut[i] = np.uint8(np.int32(min(max(value, 0.0), 255.0)))


@njit
def _equalize(counts: Array, lut: Array, sums: Array) -> None:
    total, last = 0, 0
    for i in range(256):
        total += counts[i]
        last = counts[i] if counts[i] > 0 else last
    step = (total - last) // 255
    if step == 0:
        for i in range(256):
            lut[i] = i
        return
    below = step // 2
    for i in range(256):
        sums[i] = below
        below += counts[i]
    for i in range(256):  # float64 never rounds such a quotient across an integer
        lut[i] = np.uint8(np.int32(min(sums[i] / np.float64(step), 255.0)))


@njit
def _look_up(a: Array, code: int, counts: Array, lut: Array, sums: Array) -> None:
    """Apply AutoContrast or Equalize, which depend on the histogram of each channel."""
    _histogram(a, counts)
    for channel in range(3):
        if code == AUTOCONTRAST:
            _autocontrast(counts[channel], lut[channel])
        else:
            _equalize(counts[channel], lut[channel], sums)
    red, green, blue = lut[0], lut[1], lut[2]
    for i in range(0, len(a), 3):
        a[i] = red[a[i]]
        a[i + 1] = green[a[i + 1]]
        a[i + 2] = blue[a[i + 2]]


@njit
def _solarize(a: Array, threshold: int) -> None:
    if threshold > 255:
        return
    edge = np.uint8(threshold)
    for i in range(len(a)):
        a[i] = a[i] if a[i] < edge else ~a[i]


@njit
def _posterize(a: Array, bits: int) -> None:
    kept = np.uint8(bits)
    for i in range(len(a)):
        a[i] &= kept


@njit
def point(a: Array, code: int, p: Array, counts: Array, lut: Array, sums: Array) -> None:
    """Apply an op that moves no pixel; `a` is changed in place."""
    factor = p[:1].view(np.float32)[0]
    if code in (AUTOCONTRAST, EQUALIZE):
        _look_up(a, code, counts, lut, sums)
    elif code == BRIGHTNESS:
        _blend_all(a, f32(0), factor)
    elif code == CONTRAST:
        _blend_all(a, _mean_gray(a), factor)
    elif code == COLOR:
        _color(a, factor)
    elif code == SOLARIZE:
        _solarize(a, p[0])
    elif code == POSTERIZE:
        _posterize(a, p[0])
