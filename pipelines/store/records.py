"""The stored bytes of images, mapped from their files and checked at their first use."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from pipelines.errors import DataError

if TYPE_CHECKING:
    from pipelines.store.store import Store

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]

FIX = "restore the store from a copy, or convert the data set again"


class Stored:
    """The stored bytes of a split's images; a damaged image is never returned."""

    def __init__(self, store: Store, split: str, form: str) -> None:
        self.split = split
        self.files = store.shards(split) if form == "dali" else [store.beton(split)]
        maps = [np.memmap(path, np.uint8, "r") for path in self.files]
        # As plain arrays: slicing a memmap takes several times as long.
        self._maps = [np.asarray(mapped) for mapped in maps]
        self._on_disk = [cast(mmap.mmap, mapped.base) for mapped in maps]
        self._start = "offset" if form == "dali" else "beton"
        self._several = form == "dali"
        self._records = store.records(split)
        self._checked = np.zeros(len(self._records), dtype=bool)

    def whole(self, shards: Iterable[int] = (0,)) -> None:
        """Refuse files that were truncated since they were mapped: reading them raises SIGBUS."""
        for shard in shards:
            size, mapped = self._on_disk[shard].size(), len(self._maps[shard])
            if size < mapped:
                raise DataError(
                    f"{self.files[shard]} was cut short while it was read: it has {size:,} bytes, "
                    f"not {mapped:,}",
                    FIX,
                )

    def get(self, indices: Indices) -> list[Pixels]:
        """Return the stored bytes of images, without a copy."""
        records = self._records[indices]
        shards = records["shard"].tolist() if self._several else [0] * len(records)
        self.whole(set(shards))
        starts, sizes = records[self._start].tolist(), records["size"].tolist()
        found = [
            self._maps[shard][start : start + size]
            for shard, start, size in zip(shards, starts, sizes, strict=True)
        ]
        for position in np.flatnonzero(~self._checked[indices]).tolist():
            if zlib.crc32(found[position]) != records["crc"][position]:
                raise DataError(
                    f"image {indices[position]} of split {self.split} is damaged in "
                    f"{self.files[shards[position]]}",
                    FIX,
                )
        self._checked[indices] = True
        return found

    def check(self, indices: Indices) -> None:
        """Check those images that were not checked before."""
        fresh = indices[~self._checked[indices]]
        if len(fresh):
            self.get(fresh)
