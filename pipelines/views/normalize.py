"""Normalization as a table: what each of the 256 byte values becomes, by channel."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Triple = tuple[float, float, float]


@cache
def normalization_table(mean: Triple, std: Triple) -> Array:
    """Return float32 [3, 256]: (byte / 255 - mean) / std of each channel, rounded as torch does."""
    values = np.arange(256, dtype=np.float32) / np.float32(255)
    shifted = values - np.asarray(mean, np.float32)[:, None]
    table: Array = np.ascontiguousarray(shifted / np.asarray(std, np.float32)[:, None])
    table.flags.writeable = False  # the cache returns the same array to every caller
    return table
