"""The stored bytes of images, mapped from their files and checked when they are first met."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import DataError
from pipelines.readers import Indices, Pixels

if TYPE_CHECKING:
    from pipelines.store import Store

FIX = "restore the store from a copy, or convert the data set again"


class Stored:
    """What a split's files hold for each image; a damaged image is never given out."""

    def __init__(self, store: Store, split: str, form: str) -> None:
        self.split = split
        self.files = store.shards(split) if form == "dali" else [store.beton(split)]
        # As plain arrays: to slice a memmap takes several times as long.
        self._maps = [np.asarray(np.memmap(path, np.uint8, "r")) for path in self.files]
        self._start = "offset" if form == "dali" else "beton"
        self._several = form == "dali"
        self._records = store.records(split)
        self._met = np.zeros(len(self._records), dtype=bool)

    def get(self, indices: Indices) -> list[Pixels]:
        """Return the stored bytes of images, without a copy."""
        records = self._records[indices]
        shards = records["shard"].tolist() if self._several else [0] * len(records)
        starts, sizes = records[self._start].tolist(), records["size"].tolist()
        found = [
            self._maps[shard][start : start + size]
            for shard, start, size in zip(shards, starts, sizes, strict=True)
        ]
        for place in np.flatnonzero(~self._met[indices]).tolist():
            if zlib.crc32(found[place]) != records["crc"][place]:
                raise DataError(
                    f"image {indices[place]} of split {self.split} is damaged in "
                    f"{self.files[shards[place]]}",
                    FIX,
                )
        self._met[indices] = True
        return found

    def check(self, indices: Indices) -> None:
        """Look at those images that were not met before."""
        fresh = indices[~self._met[indices]]
        if len(fresh):
            self.get(fresh)
