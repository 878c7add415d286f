"""fastssl: image classifiers from a handful of labels, with data that never waits.

The verbs of the command are functions here: `train`, `load`, `evaluate`, `convert`, `label`,
`export`, `profile`. They are imported when first used, so that `import fastssl` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastssl.version import __version__

if TYPE_CHECKING:
    from fastssl.api import convert, evaluate, export, label, load, profile, train

__all__ = [
    "__version__",
    "convert",
    "evaluate",
    "export",
    "label",
    "load",
    "profile",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a verb at its first use."""
    if name in __all__:
        from fastssl import api

        return getattr(api, name)
    raise AttributeError(f"module 'fastssl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the verbs too, for completion in a shell."""
    return sorted([*globals(), *__all__])
