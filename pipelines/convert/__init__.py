"""Conversion of raw data into stores, once and offline."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.convert.driver import convert
    from pipelines.convert.options import Options

__all__ = ["Options", "convert"]


def __getattr__(name: str) -> Any:
    """Import both when first asked for: a worker process needs neither, and starts sooner."""
    if name == "convert":
        from pipelines.convert.driver import convert

        return convert
    if name == "Options":
        from pipelines.convert.options import Options

        return Options
    raise AttributeError(f"module 'pipelines.convert' has no attribute {name!r}")
