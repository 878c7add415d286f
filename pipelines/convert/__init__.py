"""Conversion of raw data into stores, once and offline."""

from pipelines.convert.driver import Options, convert

__all__ = ["Options", "convert"]
