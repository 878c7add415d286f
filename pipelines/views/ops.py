"""The table of the fourteen ops, the recipes of views, and the parameters that a kernel gets.

A drawn view is a row of int32, the same for every kernel:

    top, left, flip, cutout x0, y0, x1, y1 (half-open; empty if x1 <= x0),
    then for each op: its code and six parameters (see `parameters`).

The source of this file is part of the key of numba's cache for the CPU kernel.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from pipelines.errors import ConfigError
from pipelines.registry import Registry

HEAD = 7  # integers of a row before the ops
WIDTH = 7  # integers of a row for each op
FILL = (125, 123, 114)  # color of Cutout
LARGEST = 16384  # pixels of a side; for larger images Pillow does not use 16.16 arithmetic


@dataclass(frozen=True)
class Op:
    """One op of RandAugment: its code in a drawn row and the range of its magnitude."""

    name: str
    code: int
    low: float
    high: float


OPS: Registry[Op] = Registry("op")
for _code, (_name, _low, _high) in enumerate(
    [
        ("AutoContrast", 0.0, 1.0),
        ("Brightness", 0.05, 0.95),
        ("Color", 0.05, 0.95),
        ("Contrast", 0.05, 0.95),
        ("Equalize", 0.0, 1.0),
        ("Identity", 0.0, 1.0),
        ("Posterize", 4.0, 8.0),
        ("Rotate", -30.0, 30.0),
        ("Sharpness", 0.05, 0.95),
        ("ShearX", -0.3, 0.3),
        ("ShearY", -0.3, 0.3),
        ("Solarize", 0.0, 256.0),
        ("TranslateX", -0.3, 0.3),
        ("TranslateY", -0.3, 0.3),
    ]
):
    OPS.add(_name, Op(_name, _code, _low, _high))

# The codes are part of compiled code and of the order in which ops are drawn: never change one.
AUTOCONTRAST, BRIGHTNESS, COLOR, CONTRAST, EQUALIZE, IDENTITY, POSTERIZE = range(7)
ROTATE, SHARPNESS, SHEAR_X, SHEAR_Y, SOLARIZE, TRANSLATE_X, TRANSLATE_Y = range(7, 14)


@dataclass(frozen=True)
class Recipe:
    """How a view is made from an image."""

    name: str
    flip: bool
    """Mirror left and right with probability 1/2."""
    padding: int
    """Pixels by which each side is padded by reflection before the random crop."""
    size: tuple[int, int]
    """Height and width of the view."""
    ops: int
    """Number of RandAugment ops; they are drawn with replacement and always applied."""
    cutout: bool
    """Cover a square of at most half the width with gray."""
    augment_first: bool = True
    """Apply ops and Cutout before flip and crop (TorchSSL) or after them (USB)."""

    @property
    def columns(self) -> int:
        """Number of integers in a drawn row."""
        return HEAD + WIDTH * self.ops

    def augmented(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of the image to which the ops are applied, for images of `size`."""
        return size if self.augment_first else self.size

    def check(self, size: tuple[int, int]) -> None:
        """Raise ConfigError if this recipe cannot crop images of `size`."""
        for side, given, needed in zip(("high", "wide"), size, self.size, strict=True):
            if not 0 < given < LARGEST or self.padding >= given:
                raise ConfigError(
                    f"images {given} pixels {side} cannot be reflected over {self.padding} pixels",
                    f"type a padding below {given}",
                )
            if needed > given + 2 * self.padding:
                raise ConfigError(
                    f"a view {needed} pixels {side} does not fit images of {given} padded by "
                    f"{self.padding}",
                    "type a smaller image_size or a larger padding, or convert larger images",
                )


def recipes(
    *,
    flip: bool,
    padding: int,
    size: tuple[int, int],
    ops: int = 3,
    augment_first: bool = True,
) -> dict[str, Recipe]:
    """Return the weak and the strong recipe of a dataset."""
    return {
        "weak": Recipe("weak", flip, padding, size, 0, False, augment_first),
        "strong": Recipe("strong", flip, padding, size, ops, True, augment_first),
    }


def parameters(code: int, magnitude: float, size: tuple[int, int]) -> tuple[int, ...]:
    """Return the six integers of an op with this magnitude on images of `size`.

    Geometry: the coefficients of Pillow's inverse map in 16.16 fixed point. Blends: the bits of
    the factor as float32. Solarize: the first value that is inverted. Posterize: the bits kept.

    This is the reference. `sample._parameters` repeats it in compiled code and falls back to it.
    """
    height, width = size
    if code in (BRIGHTNESS, COLOR, CONTRAST, SHARPNESS):
        return (_bits(magnitude), 0, 0, 0, 0, 0)
    if code == SOLARIZE:
        return (math.ceil(min(max(magnitude, 0.0), 256.0)), 0, 0, 0, 0, 0)
    if code == POSTERIZE:
        return (255 & ~((1 << (8 - min(max(int(magnitude), 1), 8))) - 1), 0, 0, 0, 0, 0)
    if code == SHEAR_X:
        return _fixed(1.0, magnitude, 0.0, 0.0, 1.0, 0.0)
    if code == SHEAR_Y:
        return _fixed(1.0, 0.0, 0.0, magnitude, 1.0, 0.0)
    if code == TRANSLATE_X:
        return (*_shifted(magnitude * width, width), *_still(vertical=True))
    if code == TRANSLATE_Y:
        step, start = _shifted(magnitude * height, height)[::2]
        return (*_still(vertical=False), 0, step, start)
    if code == ROTATE:
        return _rotated(magnitude, height, width)
    return (0, 0, 0, 0, 0, 0)


def _bits(value: float) -> int:
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits


def _still(*, vertical: bool) -> tuple[int, int, int]:
    return (0, 65536, 32768) if vertical else (65536, 0, 32768)


def _fix(value: float) -> int:
    return math.floor(value * 65536.0 + 0.5)


def _fixed(a: float, b: float, c: float, d: float, e: float, f: float) -> tuple[int, ...]:
    """Return Pillow's fixed-point form of the map x' = ax + by + c, y' = dx + ey + f.

    Pillow evaluates the map at pixel centers, hence the halves.
    """
    start_x = _fix(c + a * 0.5 + b * 0.5)
    start_y = _fix(f + d * 0.5 + e * 0.5)
    return (_fix(a), _fix(b), start_x, _fix(d), _fix(e), start_y)


def _shifted(offset: float, length: int) -> tuple[int, int, int]:
    """Return step, 0 and start of a shift along one axis.

    Pillow adds 1.0 to a double for each pixel, and so does this loop. Where such a sum rounds up
    to an integer, the shift is larger by one from there on. A step of 65537 instead of 65536
    expresses exactly that.
    """
    position = offset + 0.5
    shift = math.floor(position)
    for pixel in range(1, length):
        position += 1.0
        if math.floor(position) != pixel + shift:
            return (65537, 0, shift * 65536 + 65536 - pixel)
    return (65536, 0, shift * 65536 + 32768)


def _rotated(degrees: float, height: int, width: int) -> tuple[int, ...]:
    """Return the rotation about the center as `Image.rotate` does, quarter turns included."""
    degrees = degrees % 360.0
    quarter = degrees in (90.0, 270.0) and height == width
    if degrees in (0.0, 180.0) or quarter:
        turns = int(degrees / 90.0)
        cosine, sine = float((1, 0, -1, 0)[turns]), float((0, -1, 0, 1)[turns])
    else:
        angle = -math.radians(degrees)
        cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2.0, height / 2.0
    shift_x = cosine * -x + sine * -y + 0.0 + x
    shift_y = -sine * -x + cosine * -y + 0.0 + y
    return _fixed(cosine, sine, shift_x, -sine, cosine, shift_y)
