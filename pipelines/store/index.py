"""Where every image of a split lies (`train.npy`) and where it came from (`index.csv`)."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

NAME = "index.csv"
HEADER = ["index", "split", "label", "source"]

RECORD = np.dtype(
    [
        ("offset", "<u8"),  # in the tar shard; 0 in a store without tars
        ("beton", "<u8"),  # in the .beton file; 0 in a store without one
        ("size", "<u4"),  # of the stored bytes: pixels, or a JPEG
        ("shard", "<u2"),
        ("label", "<i2"),  # -1: none
        ("crc", "<u4"),  # CRC-32 of the stored bytes
    ]
)
MOST_CLASSES = 2**15
MOST_IMAGES = 10**8  # eight digits name a tar member

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\x80-\x9f\u2028\u2029\udc80-\udcff]")
_ESCAPED = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|\\)")


def escape(path: str) -> str:
    r"""Make a path safe for one line of text: `\x0a` for a newline, `\xff` for a stray byte."""
    return _UNSAFE.sub(_escape_one, path)


def _escape_one(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode gives it
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def unescape(text: str) -> str:
    """Turn what `escape` wrote into the path it was."""
    return _ESCAPED.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    text = match.group(1)
    if text == "\\":
        return text
    code = int(text[1:], 16)
    return chr(code + 0xDC00) if text[0] == "x" and code >= 0x80 else chr(code)


def rows(split: str, first: int, labels: Sequence[int], paths: Sequence[str]) -> str:
    """Write lines of `index.csv`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        (first + offset, split, "" if label < 0 else label, escape(path))
        for offset, (label, path) in enumerate(zip(labels, paths, strict=True))
    )
    return text.getvalue()


def read_rows(path: Path) -> Iterator[tuple[int, str, int, str]]:
    """Read `index.csv`: index, split, label (-1 for none) and the path of the source."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        if next(reader, None) != HEADER:
            raise ValueError("the header is not " + ",".join(HEADER))
        for index, split, label, source in reader:
            yield int(index), split, int(label) if label else -1, unescape(source)
