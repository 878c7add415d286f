"""The `resident` reader: a whole split in memory, on a GPU in the GPU's.

Reads either format with nothing extra installed. JPEG is decoded once, by DALI or FFCV where one
of them is installed, so that its pixels are those of the streaming readers; else by Pillow, whose
inverse DCT is the exact one (a difference of one or two grey levels).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from pipelines.errors import ResourceError
from pipelines.readers.base import READERS, Reader, streaming
from pipelines.store.records import Indices, Pixels, Stored

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store

BLOCK = 256  # images read at a time


class ResidentReader(Reader):
    """Holds the whole split, decoded; a batch is one gather."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        info = store.splits[split]
        try:
            self._images = np.empty((info.count, *self.shape), dtype=np.uint8)
        except MemoryError as error:
            raise ResourceError(
                f"split {split} of {store.path} does not fit in memory", "take reader=ffcv or dali"
            ) from error
        stored = Stored(store, split, "dali" if "dali" in store.formats else "ffcv")
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
        out = np.empty((0, *self.shape), dtype=np.uint8)
        for indices in plan:
            if self._on_device is not None:
                yield self._gather(indices)
                continue
            if len(out) != len(indices):
                out = np.empty((len(indices), *self.shape), dtype=np.uint8)
            self.read(indices, out)
            yield out

    def read(self, indices: Indices, out: Pixels) -> None:
        """Fill `out` [n, H, W, 3] with the images of the indices."""
        if self._on_device is not None:
            out[:] = self._gather(indices).cpu().numpy()
        elif len(indices):
            # "clip" writes straight into `out`; the indices come from us and are in range.
            np.take(self._images, indices, axis=0, out=out, mode="clip")

    def close(self) -> None:
        """Give the memory back."""
        self._images = self._images[:0]
        self._on_device = None

    def _gather(self, indices: Indices) -> Tensor:
        import torch

        assert self._on_device is not None
        where = torch.from_numpy(np.ascontiguousarray(indices)).pin_memory()
        return self._on_device.index_select(0, where.to(self.device, non_blocking=True))

    def _blocks(self) -> list[Indices]:
        count = len(self._images)
        return [np.arange(at, min(at + BLOCK, count)) for at in range(0, count, BLOCK)]

    def _copy(self, stored: Stored) -> None:
        flat = self._images.reshape(len(self._images), -1)
        for block in self._blocks():
            np.stack(stored.get(block), out=flat[block[0] : block[-1] + 1])

    def _decode(self, stored: Stored) -> None:
        for name in streaming(self.store)[:1]:
            other = READERS[name].open(self.store, self.split, threads=self.threads)
            for block, images in zip(self._blocks(), other.stream(self._blocks()), strict=True):
                self._images[block[0] : block[-1] + 1] = images
            other.close()
            return
        with ThreadPoolExecutor(self.threads) as pool:
            for block in self._blocks():
                for _ in pool.map(self._decode_one, block.tolist(), stored.get(block)):
                    pass

    def _decode_one(self, index: int, data: Pixels) -> None:
        with Image.open(io.BytesIO(data.tobytes())) as picture:
            self._images[index] = np.asarray(picture.convert("RGB"))
