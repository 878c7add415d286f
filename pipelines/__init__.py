"""How pixels get from disk to views: stores, readers, sampling, views and the loader.

`pipelines` never imports `fastssl`. Others call `open_store` and `open_loader`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.loader.open import open_loader
    from pipelines.store.store import open_store

__all__ = ["open_loader", "open_store"]

_MODULES = {"open_loader": "pipelines.loader.open", "open_store": "pipelines.store.store"}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use.

    Every import of a module of this package runs this file. Plain imports here would load torch
    and numba for `fastssl --help`.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
