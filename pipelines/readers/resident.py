"""The `resident` reader: a whole split in memory, or in the memory of the GPU.

It reads both formats and needs no optional package. JPEG is decoded once: by DALI or FFCV if one
of them is installed, so that the pixels equal those of the streaming readers, else by Pillow,
whose inverse DCT is exact (a difference of one or two gray levels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import ResourceError
from pipelines.readers.base import READERS, Reader, copy_raw, streaming
from pipelines.store.records import Indices, Pixels, Stored

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store

BLOCK = 256  # images read or decoded at a time


class ResidentReader(Reader):
    """Holds all decoded images of a split; a batch is one gather."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        info, stored = store.splits[split], store.stored(split)
        stored.get(np.zeros(1, np.int64))  # a size that is a lie is noticed before it is allocated
        try:
            self._images = np.empty((info.count, *self.shape), dtype=np.uint8)
        except MemoryError as error:
            raise ResourceError(
                f"split {split} of {store.path} does not fit in memory",
                "type reader=ffcv or reader=dali",
            ) from error
        if info.encoding == "raw":
            self._copy(stored)
        else:
            self._decode(stored)
        self._on_device: Tensor | None = None
        if device != "cpu":
            import torch

            self._on_device = torch.from_numpy(self._images).to(device)
            self._images = self._images[:0]

    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels | Tensor]:
        """Yield the images of every entry of the plan."""
        if self._on_device is None:
            yield from self.stream_reads(plan)
        else:
            yield from map(self._gather, plan)

    def read(self, indices: Indices, out: Pixels) -> None:
        """Fill `out` [n, H, W, 3] with the images of the indices."""
        if self._on_device is not None:
            out[:] = self._gather(indices).cpu().numpy()
        elif len(indices):
            # mode="clip" writes into `out` without a temporary copy; our indices are in range.
            np.take(self._images, indices, axis=0, out=out, mode="clip")

    def close(self) -> None:
        """Release the memory."""
        self._images = self._images[:0]
        self._on_device = None

    def _gather(self, indices: Indices) -> Tensor:
        import torch

        assert self._on_device is not None
        # From pinned memory the copy of the indices does not wait for the device.
        pinned = torch.from_numpy(np.ascontiguousarray(indices)).pin_memory()
        return self._on_device.index_select(0, pinned.to(self.device, non_blocking=True))

    def _blocks(self) -> list[Indices]:
        count = len(self._images)
        return [np.arange(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]

    def _copy(self, stored: Stored) -> None:
        for block in self._blocks():
            copy_raw(stored, block, self._images[block[0] : block[-1] + 1])

    def _decode(self, stored: Stored) -> None:
        for name in streaming(self.store)[:1]:
            other = READERS[name].open(self.store, self.split, threads=self.threads)
            for block, images in zip(self._blocks(), other.stream(self._blocks()), strict=True):
                self._images[block[0] : block[-1] + 1] = images
            other.close()
            return

        def decode(index: int) -> None:
            self._images[index] = stored.decode(index)

        with ThreadPoolExecutor(self.threads) as pool:
            for block in self._blocks():
                list(pool.map(decode, block.tolist()))
