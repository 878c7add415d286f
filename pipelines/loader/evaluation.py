"""Images for judging a model: the middle of each, normalised, in the order asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipelines.loader.transfer import Transfer
from pipelines.readers import READERS, Indices, Pixels, Reader
from pipelines.readers.auto import choose
from pipelines.views import centered

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store

KEPT = 2  # readers kept from one evaluation to the next: test and validation
_kept: dict[tuple[Any, ...], Reader] = {}


def evaluation(
    store: Store,
    split: str,
    indices: Indices,
    *,
    size: tuple[int, int],
    reader: str = "auto",
    device: str = "cpu",
    batch: int = 256,
    threads: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield float32 [n, 3, h, w] images, channels last, and their int64 labels."""
    labels = store.labels(split)[indices]
    source = _reader(store, split, reader, device, threads)
    transfer = Transfer(device)
    chunks = [indices[start : start + batch] for start in range(0, len(indices), batch)]
    for place, images in enumerate(source.stream(iter(chunks))):
        start = place * batch
        truth = transfer.send_small(labels[start : start + batch])
        yield _middle(images, size, store, transfer), truth


def _reader(store: Store, split: str, wanted: str, device: str, threads: int) -> Reader:
    """Return a reader of an earlier evaluation, or open one: some take seconds to compile."""
    key = (store.path, store.fingerprint, split, wanted, device, threads)
    if key not in _kept:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept))).close()
        name = choose(store, split, wanted=wanted, device=device).name
        _kept[key] = READERS[name].open(store, split, threads=threads, device=device)
    return _kept[key]


def _middle(
    images: Pixels | Tensor, size: tuple[int, int], store: Store, transfer: Transfer
) -> Tensor:
    if isinstance(images, np.ndarray):
        if not transfer.cuda:
            made = centered(images, size, store.mean, store.std)
            return torch.from_numpy(made).permute(0, 3, 1, 2)
        images = transfer.send(images)
    top, left = ((images.shape[axis + 1] - size[axis]) // 2 for axis in (0, 1))
    middle = images[:, top : top + size[0], left : left + size[1]].float() / 255
    mean, std = (torch.tensor(values, device=middle.device) for values in (store.mean, store.std))
    return ((middle - mean) / std).permute(0, 3, 1, 2)
