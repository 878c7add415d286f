"""WebDataset tar shards, and beside each the index that DALI needs."""

import hashlib
import tarfile
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

BLOCK = 512
TAIL = 4 * BLOCK  # what follows an image: the members .cls and .idx
SHARD_BYTES = 1 << 28  # a new shard begins once the last one has this size
INDEX_VERSION = "v1.2"  # of DALI's index files

_NAME, _SIZE, _SUM = slice(0, 8), slice(124, 135), slice(148, 154)


def _decimal(numbers: Integers, width: int) -> Bytes:
    """Write numbers as decimal ASCII digits of a fixed width, one row each."""
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _octal(numbers: Integers, width: int) -> Bytes:
    """Write numbers as octal ASCII digits of a fixed width, one row each, as tar headers do."""
    shifts = 3 * np.arange(width - 1, -1, -1)
    return ((numbers[:, None] >> shifts) & 7).astype(np.uint8) + np.uint8(ord("0"))


def _write_headers(rows: Bytes, extension: str, names: Bytes, sizes: Integers) -> None:
    """Write the tar headers of many members at once, one row of 512 bytes each.

    Only digits differ between members, so they are written by NumPy into copies of one header of
    `tarfile`. Measured for chunks of 512 images: 0.7 microseconds per image for its three
    headers, 154 with `tarfile.TarInfo.tobuf`, which is more than all other work on a small image.
    """
    member = tarfile.TarInfo(f"{0:08d}.{extension}")
    blank = np.frombuffer(member.tobuf(tarfile.USTAR_FORMAT), np.uint8)
    lengths = _octal(sizes, 11)
    rows[:] = blank
    rows[:, _NAME] = names
    rows[:, _SIZE] = lengths
    # A header's checksum is the sum of its bytes: that of the blank one, which has zeros in these
    # positions, plus the new digits.
    base = int(bytes(blank[_SUM]), 8) - ord("0") * (8 + 11)
    sums = base + names.sum(axis=1, dtype=np.int64) + lengths.sum(axis=1, dtype=np.int64)
    rows[:, _SUM] = _octal(sums, 6)


def _write_tails(rows: Bytes, names: Bytes, labels: Integers) -> Integers:
    """Write the members that follow an image, its class and index; return the classes' lengths."""
    text = labels.astype("S6")
    lengths = np.char.str_len(text).astype(np.int64)
    _write_headers(rows[:, :BLOCK], "cls", names, lengths)
    rows[:, BLOCK : BLOCK + 6] = text.view(np.uint8).reshape(-1, 6)
    _write_headers(rows[:, 2 * BLOCK : 3 * BLOCK], "idx", names, np.full(len(labels), 8))
    rows[:, 3 * BLOCK : 3 * BLOCK + 8] = names
    return lengths


class TarWriter:
    """Writes one split as tar shards; their bytes depend on the images alone."""

    def __init__(
        self, folder: Path, split: str, encoding: str, shape: tuple[int, int], threads: Executor
    ) -> None:
        self.folder = folder
        self.split = split
        raw = encoding == "raw"
        self.extension = "ppm" if raw else "jpg"
        height, width = shape
        self.prefix = b"P6\n%d %d\n255\n" % (width, height) if raw else b""
        self._digests: dict[str, str] = {}
        self._threads = threads
        self._hash = hashlib.sha256()
        self._hashing: Future[None] | None = None
        self._shards = 0
        self._file: BinaryIO | None = None
        self._lines: list[str] = []
        self._end = 0

    def add(self, images: Any, labels: Integers, first: int) -> tuple[int, Integers]:
        """Append images; return the number of their shard and their offsets in it."""
        if self._file is None or self._end >= SHARD_BYTES:
            self._next_shard()
        indices = np.arange(first, first + len(labels))
        names = _decimal(indices, 8)
        sizes = np.array([memoryview(image).nbytes for image in images]) + len(self.prefix)
        headers = np.zeros((len(images), BLOCK), np.uint8)
        tails = np.zeros((len(images), TAIL), np.uint8)
        _write_headers(headers, self.extension, names, sizes)
        lengths = _write_tails(tails, names, labels)
        parts: list[Any] = []
        for header, image, size, tail in zip(headers, images, sizes.tolist(), tails, strict=True):
            parts += (header, self.prefix, image, bytes(-size % BLOCK), tail)
        self._write(b"".join(parts))
        ends = self._end + np.cumsum(BLOCK + sizes + -sizes % BLOCK + TAIL)
        starts = np.concatenate([[self._end], ends[:-1]]) + BLOCK
        self._end = int(ends[-1])
        self._list(indices, starts, sizes, lengths)
        return self._shards - 1, starts + len(self.prefix)

    def _write(self, data: bytes) -> None:
        """Write to the shard; a thread updates the checksum, at most one write behind."""
        assert self._file is not None
        if self._hashing is not None:
            self._hashing.result()
        self._hashing = self._threads.submit(self._hash.update, data)
        self._file.write(data)

    def _list(
        self, indices: Integers, starts: Integers, sizes: Integers, lengths: Integers
    ) -> None:
        follows = starts + sizes + -sizes % BLOCK + BLOCK
        columns = (indices, starts, sizes, follows, lengths)
        for index, start, size, then, length in zip(*(c.tolist() for c in columns), strict=True):
            name = f"{index:08d}"
            self._lines.append(
                f"{self.extension} {start} {size} {name}.{self.extension} "
                f"cls {then} {length} {name}.cls idx {then + 2 * BLOCK} 8 {name}.idx\n"
            )

    def _next_shard(self) -> None:
        self._finish()
        self._file = (self.folder / self._name(self._shards)).open("wb")
        self._shards += 1
        self._hash = hashlib.sha256()
        self._end = 0

    def _name(self, number: int) -> str:
        return f"{self.split}-{number:05d}.tar"

    def _finish(self) -> None:
        if self._file is None:
            return
        self._write(bytes(2 * BLOCK))
        assert self._hashing is not None
        self._hashing.result()
        self._file.close()
        self._file = None
        name = self._name(self._shards - 1)
        self._digests[name] = self._hash.hexdigest()
        index = (self.folder / name).with_suffix(".idx")
        index.write_text(f"{INDEX_VERSION} {len(self._lines)}\n" + "".join(self._lines))
        self._lines = []

    def close(self) -> dict[str, str]:
        """Finish the last shard; return the SHA-256 of each tar file by its name."""
        self._finish()
        return self._digests

    def abandon(self) -> None:
        """Close an unfinished shard; does nothing after `close`."""
        if self._file is not None:
            self._file.close()
            self._file = None
