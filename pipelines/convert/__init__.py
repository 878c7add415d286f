"""Conversion of raw data into stores, once and offline."""

from pipelines.convert.driver import convert
from pipelines.convert.options import Options

__all__ = ["Options", "convert"]
