"""WebDataset tar shards, and beside each the index that DALI wants."""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pipelines.index import RECORD

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

BLOCK = 512
SHARD_BYTES = 1 << 28
INDEX_VERSION = "v1.2"  # of DALI's index files


def _digits(numbers: Integers, width: int, base: int) -> Bytes:
    """Write numbers as ASCII digits of a fixed width, one row each."""
    powers = base ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % base + ord("0")).astype(np.uint8)


def _headers(extension: str, indices: Integers, sizes: Integers) -> Bytes:
    """Write the tar headers of many members at once, one row of 512 bytes each."""
    member = tarfile.TarInfo(f"{0:08d}.{extension}")
    headers = np.tile(np.frombuffer(member.tobuf(tarfile.USTAR_FORMAT), np.uint8), (len(sizes), 1))
    headers[:, :8] = _digits(indices, 8, 10)
    headers[:, 124:135] = _digits(sizes, 11, 8)
    headers[:, 148:156] = ord(" ")  # the sum is taken with blanks in its own place
    headers[:, 148:154] = _digits(headers.sum(axis=1, dtype=np.int64), 6, 8)
    headers[:, 154] = 0
    return headers


def _tails(indices: Integers, labels: Integers) -> tuple[Bytes, Integers]:
    """Write the members that follow an image, its class and index; also the classes' lengths."""
    tails = np.zeros((len(labels), 4 * BLOCK), np.uint8)
    text = labels.astype("S6")
    lengths = np.char.str_len(text).astype(np.int64)
    tails[:, :BLOCK] = _headers("cls", indices, lengths)
    tails[:, BLOCK : BLOCK + 6] = text.view(np.uint8).reshape(-1, 6)
    tails[:, 2 * BLOCK : 3 * BLOCK] = _headers("idx", indices, np.full(len(labels), 8))
    tails[:, 3 * BLOCK : 3 * BLOCK + 8] = _digits(indices, 8, 10)
    return tails, lengths


class TarWriter:
    """Writes one split as tar shards whose bytes depend on the images alone."""

    def __init__(self, folder: Path, split: str, encoding: str, shape: tuple[int, int]) -> None:
        self.folder = folder
        self.split = split
        self.raw = encoding == "raw"
        self.extension = "ppm" if self.raw else "jpg"
        height, width = shape
        self.prefix = b"P6\n%d %d\n255\n" % (width, height) if self.raw else b""
        self.names: list[str] = []
        self._file: BinaryIO | None = None
        self._lines: list[str] = []
        self._end = 0

    def add(self, images: Bytes | Sequence[bytes], labels: Integers, first: int) -> Any:
        """Append images; return the index records with shard, offset, size and label filled."""
        if self._file is None or self._end >= SHARD_BYTES:
            self._next_shard()
        assert self._file is not None
        indices = np.arange(first, first + len(labels))
        pixels = np.array([len(one) for one in images]) if not self.raw else _sizes(images)
        sizes = pixels + len(self.prefix)
        headers = _headers(self.extension, indices, sizes)
        tails, lengths = _tails(indices, labels)
        padding = -sizes % BLOCK
        starts = self._end + np.cumsum(BLOCK + sizes + padding + 4 * BLOCK)
        starts = np.concatenate([[self._end], starts])
        if isinstance(images, np.ndarray):
            self._file.write(self._raw_block(images, headers, tails, int(padding[0])).data)
        else:
            for image, header, pad, tail in zip(images, headers, padding, tails, strict=True):
                self._file.write(b"".join((header, image, bytes(pad), tail)))
        self._end = int(starts[-1])
        self._list(indices, starts[:-1] + BLOCK, sizes, padding, lengths)
        records = np.zeros(len(labels), RECORD)
        records["offset"] = starts[:-1] + BLOCK + len(self.prefix)
        records["size"] = pixels
        records["shard"] = len(self.names) - 1
        records["label"] = labels
        return records

    def _raw_block(self, images: Bytes, headers: Bytes, tails: Bytes, padding: int) -> Bytes:
        rows = len(images)
        prefix = np.tile(np.frombuffer(self.prefix, np.uint8), (rows, 1))
        blanks = np.zeros((rows, padding), np.uint8)
        return np.hstack([headers, prefix, images.reshape(rows, -1), blanks, tails])

    def _list(
        self, indices: Integers, data: Integers, sizes: Integers, padding: Integers, cls: Integers
    ) -> None:
        after = data + sizes + padding + BLOCK
        for index, start, size, then, length in zip(
            indices.tolist(), data.tolist(), sizes.tolist(), after.tolist(), cls.tolist(),
            strict=True,
        ):  # fmt: skip
            self._lines.append(
                f"{self.extension} {start} {size} {index:08d}.{self.extension} "
                f"cls {then} {length} {index:08d}.cls "
                f"idx {then + 2 * BLOCK} 8 {index:08d}.idx\n"
            )

    def _next_shard(self) -> None:
        self._finish()
        self.names.append(f"{self.split}-{len(self.names):05d}.tar")
        self._file = (self.folder / self.names[-1]).open("wb")
        self._end = 0

    def _finish(self) -> None:
        if self._file is None:
            return
        self._file.write(bytes(2 * BLOCK))
        self._file.close()
        self._file = None
        index = (self.folder / self.names[-1]).with_suffix(".idx")
        index.write_text(f"{INDEX_VERSION} {len(self._lines)}\n" + "".join(self._lines))
        self._lines = []

    def close(self) -> list[str]:
        """Finish the last shard and return the names of the tar files."""
        self._finish()
        return self.names

    def abandon(self) -> None:
        """Close what is open, unfinished as it is; after `close` there is nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _sizes(images: Bytes | Sequence[bytes]) -> Integers:
    return np.full(len(images), np.asarray(images[0]).size, np.int64)
