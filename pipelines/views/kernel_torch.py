"""Views in batched torch on any device, bit-exact to Pillow and to the CPU kernel.

There is no Python loop over images, no branch on a value and no wait for the device. Different
images of a batch have different ops, so for each op of a row all images pass through a geometric
map, a blend and a table per channel; for every image at least two of the three change nothing.
Only integers and tables are used. The one product of floats is exact in float64 and rounded before
it is added, so that no compiler can contract it into a multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pipelines.views.normalize import normalization_table
from pipelines.views.ops import (
    AUTOCONTRAST,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    EQUALIZE,
    FILL,
    HEAD,
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
)

STILL = (65536, 0, 32768, 0, 65536, 32768)  # the identity map
# Height, width, padding, number of ops, Cutout, ops first.
Plan = tuple[int, int, int, int, bool, bool]


def apply(
    images: Tensor,
    draws: Sequence[Tensor],
    recipes: Sequence[Recipe],
    mean: Sequence[float],
    std: Sequence[float],
) -> list[Tensor]:
    """Return the views of uint8 [n, H, W, 3] images: one channels-last [n, 3, h, w] per draw.

    Images and draws are on one device. On CUDA the kernel is compiled at its first use.
    """
    plans = [(*r.size, r.padding, r.ops, r.cutout, r.augment_first) for r in recipes]
    tables = constants(images.device, tuple(mean), tuple(std))
    run = _compiled() if images.is_cuda and type(images) is Tensor else make
    return run(images, list(draws), plans, *tables)


@cache
def _compiled() -> Callable[..., list[Tensor]]:
    return torch.compile(make, fullgraph=True, dynamic=False)


@cache
def constants(
    device: torch.device, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the constant tables on the device; they are copied there once.

    Normalized bytes [768]; AutoContrast's products [256, 256], value times 255 / spread as a
    double rounds it; the identity map [6]; the color of Cutout [3].
    """
    spreads = np.maximum(np.arange(256), 1)[:, None]
    products = np.arange(256) * (255.0 / spreads)
    arrays = (
        normalization_table(mean, std).reshape(-1),
        products,
        np.array(STILL, np.int32),
        np.array(FILL, np.uint8),
    )
    first, second, third, fourth = (torch.from_numpy(array.copy()).to(device) for array in arrays)
    return first, second, third, fourth


def make(
    images: Tensor,
    draws: list[Tensor],
    plans: list[Plan],
    table: Tensor,
    products: Tensor,
    still: Tensor,
    fill: Tensor,
) -> list[Tensor]:
    """Apply the draws; all tensors are on one device and all sizes are known."""
    views = []
    for rows, plan in zip(draws, plans, strict=True):
        height, width, padding, ops, cutout, augment_first = plan
        view = images if augment_first else _cropped(images, rows, height, width, padding)
        for column in range(HEAD, HEAD + ops * WIDTH, WIDTH):
            code, p = rows[:, column], rows[:, column + 1 : column + WIDTH]
            view = _moved(view, code, p, still)
            view = _blended(view, code, p)
            view = _mapped(view, code, p, products)
        if cutout:
            view = _covered(view, rows, fill)
        if augment_first:
            view = _cropped(view, rows, height, width, padding)
        level = view.int() + 256 * _range(3, view)
        views.append(table[level].permute(0, 3, 1, 2))
    return views


def _range(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=like.device)


def _any(code: Tensor, *codes: int) -> Tensor:
    """Return which rows have one of the codes."""
    found = code == codes[0]
    for other in codes[1:]:
        found = found | (code == other)
    return found


def _pixels_at(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the pixels at the coordinates [n, h, w]."""
    return images[_range(len(images), images)[:, None, None], y, x]


def _moved(images: Tensor, code: Tensor, p: Tensor, still: Tensor) -> Tensor:
    """Translate, shear or rotate by Pillow's 16.16 arithmetic; pixels from outside are black."""
    height, width = images.shape[1:3]
    moves = _any(code, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y)
    a, b, c, d, e, f = torch.where(moves[:, None], p, still)[:, :, None, None].unbind(1)
    y, x = _range(height, images)[:, None], _range(width, images)
    from_x, from_y = (c + a * x + b * y) >> 16, (f + d * x + e * y) >> 16  # [n, H, W]
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    pixels = _pixels_at(images, from_y.clamp(0, height - 1), from_x.clamp(0, width - 1))
    return torch.where(inside[..., None], pixels, 0)


def _smoothed(images: Tensor) -> Tensor:
    """Apply Pillow's SMOOTH: weights 1, in the center 5, over 13; the border is unchanged."""
    height, width = images.shape[1:3]
    wide = pad(images, (0, 0, 1, 1, 1, 1))
    total = 4 * images
    for dy in range(3):
        for dx in range(3):
            total = total + wide[:, dy : dy + height, dx : dx + width]
    y, x = _range(height, images)[:, None, None], _range(width, images)[:, None]
    inner = (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    return torch.where(inner, (2 * total + 13) // 26, images)


def _blended(images: Tensor, code: Tensor, p: Tensor) -> Tensor:
    """Blend with black, with gray, with the mean gray or with the smoothed image."""
    value = images.int()  # [n, H, W, 3]
    red, green, blue = value.unbind(3)
    gray = ((red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16)[..., None]
    pixels = images.shape[1] * images.shape[2]
    mean = (2 * gray.sum((1, 2, 3), keepdim=True, dtype=torch.int64) + pixels) // (2 * pixels)
    which = code[:, None, None, None]
    base = torch.where(which == COLOR, gray, 0)
    base = torch.where(which == CONTRAST, mean.int(), base)
    base = torch.where(which == SHARPNESS, _smoothed(value), base)
    factor = p[:, :1].contiguous().view(torch.float32)[:, :, None, None].double()
    mixed = base.float() + (factor * (value - base).double()).float()
    blends = _any(which, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS)
    return torch.where(blends, mixed.clamp(0, 255).to(torch.uint8), images)


def _mapped(images: Tensor, code: Tensor, p: Tensor, products: Tensor) -> Tensor:
    """Map each channel through a table: Solarize, Posterize, AutoContrast, Equalize."""
    count = len(images)
    channel = _range(3, images) + 3 * _range(count, images)[:, None, None, None]
    entry = images.int() + 256 * channel  # [n, H, W, 3], an entry of the n * 3 tables
    ones = torch.ones_like(entry).reshape(-1)
    counts = torch.zeros(count * 768, dtype=torch.int32, device=images.device)
    counts = counts.index_add(0, entry.reshape(-1), ones).view(count, 3, 256)
    level = _range(256, images)
    low = torch.where(counts > 0, level, 255).amin(2, keepdim=True)
    high = torch.where(counts > 0, level, 0).amax(2, keepdim=True)

    which, first = code[:, None, None], p[:, :1, None]
    table = torch.where(which == SOLARIZE, torch.where(level < first, level, 255 - level), level)
    table = torch.where(which == POSTERIZE, level & first, table)
    spread = (high - low).clamp(min=0)
    stretched = (products[spread, level] - products[spread, low]).clamp(0, 255).int()
    table = torch.where((which == AUTOCONTRAST) & (spread > 0), stretched, table)
    step = (images.shape[1] * images.shape[2] - counts.gather(2, high.long())) // 255
    below = step // 2 + counts.cumsum(2, dtype=torch.int32) - counts
    equal = (below // step.clamp(min=1)).clamp(max=255)
    table = torch.where((which == EQUALIZE) & (step > 0), equal, table)
    return table.to(torch.uint8).reshape(-1)[entry]


def _covered(images: Tensor, rows: Tensor, fill: Tensor) -> Tensor:
    """Fill the square of Cutout."""
    x0, y0, x1, y1 = rows[:, 3:7, None, None].unbind(1)
    y, x = _range(images.shape[1], images)[:, None], _range(images.shape[2], images)
    inside = (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
    return torch.where(inside[..., None], fill, images)


def _cropped(images: Tensor, rows: Tensor, height: int, width: int, padding: int) -> Tensor:
    """Flip, pad by reflection and crop."""
    tall, wide = images.shape[1:3]
    y = (_range(height, images) + rows[:, :1] - padding).abs()
    x = (_range(width, images) + rows[:, 1:2] - padding).abs()
    y = torch.where(y < tall, y, 2 * (tall - 1) - y)
    x = torch.where(x < wide, x, 2 * (wide - 1) - x)
    x = torch.where(rows[:, 2:3] > 0, wide - 1 - x, x)
    return _pixels_at(images, y[:, :, None], x[:, None, :])
