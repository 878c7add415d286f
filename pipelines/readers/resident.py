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

from pipelines import manifest
from pipelines.errors import DataError, ResourceError
from pipelines.readers import READERS, Indices, Pixels, Reader, damaged_image

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store import Store

BLOCK = 256  # images decoded at a time


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
        self._check_files()
        if info.encoding == "raw":
            self._copy()
        else:
            self._decode()
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

    def _check_files(self) -> None:
        """Compare every file with its checksum: all of it is about to be read anyway."""
        for path in self.store.files(self.split):
            if manifest.digest(path) != self.store.manifest["files"][path.name]["sha256"]:
                raise DataError(
                    f"{path} is damaged: it does not agree with its checksum in dataset.json",
                    "restore it from a copy, or convert the data set again",
                )

    def _copy(self) -> None:
        where = self.store.locations(self.split)
        maps = [np.memmap(path, np.uint8, "r") for path in self.store.files(self.split)]
        flat = self._images.reshape(len(self._images), -1)
        places = zip(where.shard.tolist(), where.offset.tolist(), strict=True)
        for index, (shard, start) in enumerate(places):
            flat[index] = maps[shard][start : start + flat.shape[1]]

    def _decode(self) -> None:
        blocks = [
            np.arange(start, min(start + BLOCK, len(self._images)))
            for start in range(0, len(self._images), BLOCK)
        ]
        for name in ("dali", "ffcv"):
            kind = READERS[name]
            if kind.installed and kind.format in self.store.formats:
                other = kind.open(self.store, self.split, threads=self.threads)
                for block, images in zip(blocks, other.stream(blocks), strict=True):
                    self._images[block[0] : block[-1] + 1] = images
                other.close()
                return
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(self._decode_one, range(len(self._images))):
                pass

    def _decode_one(self, index: int) -> None:
        try:
            with Image.open(io.BytesIO(self.store.encoded(self.split, index))) as picture:
                self._images[index] = np.asarray(picture.convert("RGB"))
        except (OSError, ValueError) as error:
            shard = int(self.store.locations(self.split).shard[index])
            path = self.store.files(self.split)[shard]
            raise damaged_image(path, self.split, index) from error
