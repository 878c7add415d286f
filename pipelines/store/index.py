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
LONGEST_LINE = 2**18  # characters of index.csv; csv refuses a field of more than half of it

# What would break a line of text, and backslashes. A byte that is not UTF-8 is 0xDC00 + byte in
# what os.fsdecode returns.
_CONTROLS = [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029]
_ESCAPES = (
    {code: f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" for code in _CONTROLS}
    | {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
    | {ord("\\"): r"\\"}
)
_ORIGINALS = {escaped: chr(code) for code, escaped in _ESCAPES.items()}


def escape(path: str) -> str:
    r"""Make a path safe for one line of text: `\x0a` for a newline, `\xff` for a stray byte."""
    return path.translate(_ESCAPES)


def unescape(text: str) -> str:
    """Turn what `escape` wrote into the path it was."""
    escaped = re.compile(r"\\(x..|u....|\\)")
    return escaped.sub(lambda match: _ORIGINALS.get(match.group(), match.group()), text)


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
        # A line without an end would fill the memory: it is cut, and refused as a field too long.
        reader = csv.reader(iter(lambda: file.readline(LONGEST_LINE), ""))
        if next(reader, None) != HEADER:
            raise ValueError("the header is not " + ",".join(HEADER))
        for index, split, label, source in reader:
            yield int(index), split, int(label) if label else -1, unescape(source)
