"""Images for evaluating a model: center crop, normalized, in the order requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipelines.errors import ConfigError
from pipelines.loader.transfer import Transfer
from pipelines.readers import READERS, Indices, Pixels, Reader, choose
from pipelines.views import centered

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store
    from pipelines.views.normalize import Triple


class EvaluationBatches(AbstractContextManager["EvaluationBatches"]):
    """Batches of float32 [n, 3, h, w] images, channels last, with their int64 labels [n].

    It can be iterated any number of times. The reader is opened by the first iteration and stays
    open until `close`, because some readers take seconds to open.

    Args:
        store: the converted dataset.
        split: `train` or `test`.
        indices: the images of that split, in the order in which they are returned.
        size: height and width of the center crop.
        mean, std: of the normalization; by default those of the store. A trained model needs
            those of the store that it was trained on.
        reader: a name in READERS, or "auto".
        device: where the batches are needed.
        batch: images in a batch; the last batch may be smaller.
        threads: decoding threads.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        indices: Indices,
        *,
        size: tuple[int, int],
        mean: Triple | None = None,
        std: Triple | None = None,
        reader: str = "auto",
        device: str = "cpu",
        batch: int = 256,
        threads: int = 1,
    ) -> None:
        stored = store.splits[split]
        if stored.height < size[0] or stored.width < size[1]:
            raise ConfigError(
                f"the {split} images of {store.path} are {stored.height}x{stored.width} pixels, "
                f"smaller than the views of {size[0]}x{size[1]}",
                f"type image_size={min(stored.height, stored.width)}, or convert larger images",
            )
        self.store, self.split, self.indices = store, split, indices
        self.size, self.batch = size, batch
        self.mean, self.std = mean or store.mean, std or store.std
        self._wanted, self._device, self._threads = reader, device, threads
        self._reader: Reader | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches, from the first one on."""
        if not len(self.indices):  # a rank may have no image; then it needs no reader
            return
        labels = self.store.labels(self.split)[self.indices]
        starts = range(0, len(self.indices), self.batch)
        plan = [self.indices[start : start + self.batch] for start in starts]
        transfer = Transfer(self._device)
        for start, images in zip(starts, self._open().stream(iter(plan)), strict=True):
            truth = transfer.send_small(labels[start : start + self.batch])
            yield self._prepare(images, transfer), truth

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.indices) // self.batch)

    def close(self) -> None:
        """Close the reader; a later iteration opens it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __exit__(self, *error: object) -> None:
        """Close the reader."""
        self.close()

    def _open(self) -> Reader:
        if self._reader is None:
            store, split, device = self.store, self.split, self._device
            name = choose(store, split, wanted=self._wanted, device=device).name
            self._reader = READERS[name].open(store, split, threads=self._threads, device=device)
        return self._reader

    def _prepare(self, images: Pixels | Tensor, transfer: Transfer) -> Tensor:
        """Crop the center and normalize: uint8 [n, H, W, 3] to float32 [n, 3, h, w]."""
        mean, std, (height, width) = self.mean, self.std, self.size
        if isinstance(images, np.ndarray):
            if not transfer.cuda:
                return torch.from_numpy(centered(images, self.size, mean, std)).permute(0, 3, 1, 2)
            images = transfer.send(images)
        top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
        crop = images[:, top : top + height, left : left + width].float() / 255
        shift, scale = (torch.tensor(values, device=crop.device) for values in (mean, std))
        return ((crop - shift) / scale).permute(0, 3, 1, 2)
