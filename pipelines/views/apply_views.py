"""Drawn views applied on the CPU, the center crop of evaluation, and single ops for inspection."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from pipelines.errors import ConfigError
from pipelines.views.normalize import normalization_table
from pipelines.views.ops import HEAD, IDENTITY, OPS, Recipe, parameters

Array = np.ndarray[Any, Any]

_SMALLEST = 8  # images; with fewer, a thread costs more than it gains


def apply(
    images: Array,
    draws: Sequence[Array],
    recipes: Sequence[Recipe],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    out: Sequence[Array] | None = None,
    threads: int = 1,
) -> list[Array]:
    """Return the views of uint8 [n, H, W, 3] images: one float32 [n, h, w, 3] for each draw.

    View k is made by `recipes[k]` with the rows of `draws[k]`. If `out` is given, it is filled
    and returned.
    """
    # Imported here: without numba's cache its import compiles for many seconds, and a run on a
    # GPU never needs it.
    import pipelines.views.kernel_cpu as kernel_cpu

    images = np.ascontiguousarray(np.asarray(images))
    _check(images, draws, recipes)
    shapes = [(len(images), *recipe.size, 3) for recipe in recipes]
    made = [np.empty(shape, np.float32) for shape in shapes] if out is None else list(out)
    for array, shape in zip(made, shapes, strict=True):
        if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
            raise ValueError(f"an output must be float32, contiguous, {shape}, not {array.shape}")
    rows = _stacked(draws)
    geometry = np.array(
        [(*r.size, r.padding, r.augment_first, r.ops > 0 or r.cutout) for r in recipes], np.int64
    )
    addresses = np.array([array.ctypes.data for array in made], np.int64)
    table = normalization_table(tuple(mean), tuple(std))

    def work(bounds: tuple[int, int]) -> None:
        kernel_cpu.views(images, rows, geometry, addresses, table, *bounds)

    _in_parallel(work, len(images), threads)
    return made


def centered(
    images: Array, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Array:
    """Crop the center of uint8 [n, H, W, 3] images and normalize it: float32 [n, h, w, 3]."""
    recipe = Recipe("centered", False, 0, size, 0, False)
    height, width = images.shape[1:3]
    recipe.check((height, width))
    rows = np.zeros((len(images), HEAD), np.int32)
    rows[:, 0], rows[:, 1] = (height - size[0]) // 2, (width - size[1]) // 2
    return apply(images, [rows], [recipe], mean=mean, std=std)[0]


def apply_op(name: str, image: Array, magnitude: float, kernel: str = "cpu") -> Array:
    """Apply one op to one uint8 H x W x 3 image; `kernel` is "cpu" or "torch"."""
    size = (image.shape[0], image.shape[1])
    recipe = Recipe(name, False, 0, size, 1, False)
    code = OPS[name].code
    rows = np.zeros((1, recipe.columns), np.int32)
    rows[0, HEAD] = code
    rows[0, HEAD + 1 :] = parameters(code, float(magnitude), size)
    # With mean 0 and std 1/255 a normalized value is the byte itself.
    mean, std = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)
    if kernel == "cpu":
        made = apply(image[None], [rows], [recipe], mean=mean, std=std)[0][0]
    elif kernel == "torch":
        import torch  # only here: views on a CPU do not need it

        from pipelines.views.kernel_torch import apply as apply_torch

        batch = torch.from_numpy(np.array(image[None]))
        view = apply_torch(batch, [torch.from_numpy(rows)], [recipe], mean, std)[0][0]
        made = view.permute(1, 2, 0).numpy()
    else:
        raise ConfigError(f"no kernel is named {kernel!r}", "type one of: cpu, torch")
    levels: Array = np.rint(made).astype(np.uint8)
    return levels


def _check(images: Array, draws: Sequence[Array], recipes: Sequence[Recipe]) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"images must be uint8 [n, H, W, 3], not {images.dtype} {images.shape}")
    for rows, recipe in zip(draws, recipes, strict=True):
        recipe.check((images.shape[1], images.shape[2]))
        if rows.shape != (len(images), recipe.columns):
            expected = (len(images), recipe.columns)
            raise ValueError(f"recipe {recipe.name!r} expects {expected} rows, not {rows.shape}")


def _stacked(draws: Sequence[Array]) -> Array:
    """Return the rows of all views as one table; shorter rows are filled up with Identity."""
    columns = max(rows.shape[1] for rows in draws)
    table = np.full((len(draws), len(draws[0]), columns), IDENTITY, np.int32)
    for view, rows in enumerate(draws):
        table[view, :, : rows.shape[1]] = rows
    return table


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process; a forked process needs one of its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="views")


def _in_parallel(work: Any, count: int, threads: int) -> None:
    """Run `work` on `count` images in more pieces than threads: a slow one delays little."""
    pieces = min(4 * threads, max(count // _SMALLEST, 1)) if threads > 1 else 1
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    bounds = list(pairwise(edges))
    if pieces == 1:
        work(bounds[0])
        return
    for _ in _pool(os.getpid(), threads).map(work, bounds):
        pass
