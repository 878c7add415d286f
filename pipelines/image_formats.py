"""The formats of image files that are read, and the only place where Pillow opens a file.

Pillow left to itself tries every format that it knows. For EPS, whatever the name of the file, it
starts Ghostscript, which is a program for whoever wrote the file.
"""

from __future__ import annotations

from functools import cache
from typing import IO

from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "JPEG2000", "DIB", "QOI")
HEIF_SUFFIXES = frozenset((".heic", ".heics", ".heif", ".heifs", ".hif"))


@cache
def accepted() -> tuple[str, ...]:
    """Return the formats of users' files, HEIF among them if pillow-heif is installed."""
    try:
        from pillow_heif import register_heif_opener
    except (ImportError, OSError):  # absent, or a library of it is
        return FORMATS
    register_heif_opener()
    return (*FORMATS, "HEIF")


@cache
def suffixes() -> frozenset[str]:
    """Return the file suffixes of these formats, in lower case."""
    formats = {*accepted(), "MPO"}  # MPO: several JPEGs in one file, opened as a JPEG
    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, name in known if name in formats)


def open_file(file: str | IO[bytes], formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open an image without decoding it; any format but the accepted ones is refused."""
    return Image.open(file, formats=formats or accepted())
