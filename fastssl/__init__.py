"""fastssl: image classifiers from a handful of labels, with data that never waits.

The verbs of the command are functions here: `train`, `load`, `evaluate`, `convert`, `label`,
`export`, `profile`, `make_report`, `draw_views`, `run_sweep`. A mistake of the caller raises a
`UserError`: `ConfigError`, `DataError`, `DivergedError` or `ResourceError`. All of them are
imported when first used, so that `import fastssl` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastssl.version import __version__

if TYPE_CHECKING:
    from fastssl.api import (
        ConfigError,
        DataError,
        DivergedError,
        ResourceError,
        UserError,
        convert,
        draw_views,
        evaluate,
        export,
        label,
        load,
        make_report,
        profile,
        run_sweep,
        train,
    )

__all__ = [
    "ConfigError",
    "DataError",
    "DivergedError",
    "ResourceError",
    "UserError",
    "__version__",
    "convert",
    "draw_views",
    "evaluate",
    "export",
    "label",
    "load",
    "make_report",
    "profile",
    "run_sweep",
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
