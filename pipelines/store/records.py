"""The stored bytes of images, mapped from their files and checked at their first use."""

from __future__ import annotations

import io
import mmap
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pipelines.errors import DataError
from pipelines.store.manifest import SplitInfo

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Records = npt.NDArray[Any]  # of the type index.RECORD

FIX = "restore the store from a copy, or convert the dataset again"

# Segments that may precede the frame header: tables, restart interval, application data, comment.
_BEFORE_FRAME = {0xFFC4, 0xFFDB, 0xFFDD, *range(0xFFE0, 0xFFF0), 0xFFFE}
_FRAMES = {0xFFC0, 0xFFC1, 0xFFC2}  # baseline, extended, progressive


def jpeg_shape(data: memoryview) -> tuple[int, int, int] | None:
    """Return height, width and channels that the header of an 8-bit JPEG declares, else None."""
    position = 2 if bytes(data[:2]) == b"\xff\xd8" else len(data)
    while position + 10 <= len(data):
        marker, length = struct.unpack_from(">HH", data, position)
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, position + 4)
            return (height, width, channels) if bits == 8 else None
        if marker not in _BEFORE_FRAME:
            return None
        position += 2 + length
    return None


class Stored:
    """The stored bytes of a split's images in one format; a damaged image is never returned."""

    def __init__(
        self, split: str, info: SplitInfo, form: str, files: Sequence[Path], records: Records
    ) -> None:
        self.split = split
        self.files = files
        self._raw = info.encoding == "raw"
        self._shape = (info.height, info.width, 3)
        try:
            maps = [np.memmap(path, np.uint8, "r") for path in files]
        except (ValueError, FileNotFoundError, PermissionError) as error:  # ValueError: it is empty
            what = f"the {split} images in {files[0].parent} cannot be read: {error}"
            raise DataError(what, FIX) from None
        # As plain arrays: slicing a memmap takes several times as long.
        self._maps = [np.asarray(mapped) for mapped in maps]
        self._on_disk = [cast(mmap.mmap, mapped.base) for mapped in maps]
        self._start = "offset" if form == "dali" else "beton"
        self._several = form == "dali"
        self._records = records
        self._checked = np.zeros(len(records), dtype=bool)

    def get(self, indices: Indices) -> list[Pixels]:
        """Return the stored bytes of images, without a copy."""
        records = self._records[indices]
        shards = records["shard"].tolist() if self._several else [0] * len(records)
        self._refuse_truncated(set(shards))
        starts, sizes = records[self._start].tolist(), records["size"].tolist()
        found = [
            self._maps[shard][start : start + size]
            for shard, start, size in zip(shards, starts, sizes, strict=True)
        ]
        for position in np.flatnonzero(~self._checked[indices]).tolist():
            if zlib.crc32(found[position]) != records["crc"][position]:
                raise self.damaged(indices[position], "its checksum is another one")
            # A decoder would allocate what the header of a JPEG says, or scale the image silently.
            if not self._raw and jpeg_shape(found[position].data) != self._shape:
                raise self.damaged(indices[position], f"it is no JPEG of the shape {self._shape}")
        self._checked[indices] = True
        return found

    def locate(self, indices: Indices) -> tuple[Pixels, Indices, Indices]:
        """Return the mapped .beton file, and where the bytes of images begin and how many."""
        self._refuse_truncated()
        fresh = indices[~self._checked[indices]]
        if len(fresh):
            self.get(fresh)
        records = self._records[indices]
        starts, sizes = (records[field].astype(np.int64) for field in ("beton", "size"))
        return self._maps[0], starts, sizes

    def decode(self, index: int) -> Pixels:
        """Return the pixels [H, W, 3] of an image, decoded by Pillow if it is a JPEG."""
        (stored,) = self.get(np.array([index]))
        if self._raw:
            return stored.reshape(self._shape)
        from pipelines.image_formats import open_file

        try:
            with open_file(io.BytesIO(stored.tobytes()), ("JPEG",)) as image:
                pixels = np.asarray(image)
        except Exception as error:  # a decoder may raise anything
            raise self.damaged(index, f"cannot be decoded: {error}") from None
        if pixels.shape != self._shape:
            raise self.damaged(index, f"its shape is {pixels.shape}, not {self._shape}")
        return pixels

    def damaged(self, index: int, why: str) -> DataError:
        """Return the error for an image that cannot be used."""
        file = self.files[self._records["shard"][index] if self._several else 0]
        return DataError(f"image {index} of split {self.split} is damaged in {file}: {why}", FIX)

    def _refuse_truncated(self, shards: Iterable[int] = (0,)) -> None:
        """Refuse files that were truncated since they were mapped: reading them raises SIGBUS."""
        for shard in shards:
            size, mapped = self._on_disk[shard].size(), len(self._maps[shard])
            if size < mapped:
                raise DataError(
                    f"{self.files[shard]} was cut short while it was read: it has {size:,} bytes, "
                    f"not {mapped:,}",
                    FIX,
                )
