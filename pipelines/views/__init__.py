"""Weak and strong views: drawn on the host, applied by numba on a CPU or by torch on any device.

`draw` and `apply` are imported when first used, so that naming a recipe costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pipelines.views.ops import OPS, Recipe, recipes

if TYPE_CHECKING:
    from pipelines.views.apply_views import apply, apply_op, centered
    from pipelines.views.sample import draw, names

__all__ = ["OPS", "Recipe", "apply", "apply_op", "centered", "draw", "names", "recipes"]

_LATER = {
    "apply": "apply_views",
    "apply_op": "apply_views",
    "centered": "apply_views",
    "draw": "sample",
    "names": "sample",
}


def __getattr__(name: str) -> Any:
    """Import what needs numba at its first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
