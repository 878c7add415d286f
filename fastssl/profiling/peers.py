"""What others would use for the same views: Pillow or torchvision in a DataLoader.

A peer is given the images once. `epoch` makes one weak and one strong view of each, as normalised
float batches, and returns how many views that were; it begins and ends with nothing under way, so
that no peer works in another's time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from pipelines.registry import Registry

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Work:
    """The views that all peers are asked for."""

    images: Array  # uint8 [n, H, W, 3]
    size: int
    batch: int
    padding: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Peer(Protocol):
    """Something that makes views."""

    def epoch(self) -> int:
        """Make the views of every image; return how many they were."""

    def close(self) -> None:
        """End its threads and processes."""


PEERS: Registry[Callable[[Work, int], Peer]] = Registry("peer")  # of work and threads


class Loading:
    """A DataLoader with persistent workers around a data set of pairs of views."""

    def __init__(self, views: Any, work: Work, threads: int, most: int) -> None:
        from torch.utils.data import DataLoader, Subset

        count = min(len(work.images), most * work.batch)
        self._loader: Any = DataLoader(
            Subset(views, range(count)),
            batch_size=work.batch,
            shuffle=True,
            num_workers=threads,
            persistent_workers=True,
            multiprocessing_context="fork",
        )

    def epoch(self) -> int:
        """Take every batch."""
        return sum(len(weak) + len(strong) for weak, strong in self._loader)

    def close(self) -> None:
        """End the workers."""
        self._loader._iterator = None


class PillowViews:
    """The plain pipeline: Pillow ops, image by image, with torchvision's crop and ToTensor."""

    def __init__(self, work: Work) -> None:
        from torchvision import transforms

        self._images = work.images
        weak = [
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(work.size, padding=work.padding, padding_mode="reflect"),
            transforms.ToTensor(),
            transforms.Normalize(work.mean, work.std),
        ]
        self._weak = transforms.Compose(weak)
        self._strong = transforms.Compose([pillow_strong, *weak])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        image = Image.fromarray(self._images[index])
        return self._weak(image), self._strong(image)


def pillow_strong(image: Any, ops: int = 3) -> Any:
    """Apply RandAugment and Cutout with Pillow."""
    from PIL import ImageDraw

    for op, low, high in random.choices(_pillow_ops(), k=ops):
        image = op(image, low + (high - low) * random.random())
    width, height = image.size
    side = random.random() * 0.5 * width
    x = int(max(0.0, random.random() * width - side / 2))
    y = int(max(0.0, random.random() * height - side / 2))
    image = image.copy()
    box = (x, y, min(width, x + side), min(height, y + side))
    ImageDraw.Draw(image).rectangle(box, (125, 123, 114))
    return image


@cache
def _pillow_ops() -> list[tuple[Callable[[Any, float], Any], float, float]]:
    from PIL import Image, ImageEnhance, ImageOps

    def moved(matrix: Callable[[float, tuple[int, int]], tuple[float, ...]]) -> Any:
        return lambda i, v: i.transform(i.size, Image.Transform.AFFINE, matrix(v, i.size))

    return [
        (lambda i, v: ImageOps.autocontrast(i), 0, 1),
        (lambda i, v: ImageEnhance.Brightness(i).enhance(v), 0.05, 0.95),
        (lambda i, v: ImageEnhance.Color(i).enhance(v), 0.05, 0.95),
        (lambda i, v: ImageEnhance.Contrast(i).enhance(v), 0.05, 0.95),
        (lambda i, v: ImageOps.equalize(i), 0, 1),
        (lambda i, v: i, 0, 1),
        (lambda i, v: ImageOps.posterize(i, int(v)), 4, 8),
        (lambda i, v: i.rotate(v), -30, 30),
        (lambda i, v: ImageEnhance.Sharpness(i).enhance(v), 0.05, 0.95),
        (moved(lambda v, size: (1, v, 0, 0, 1, 0)), -0.3, 0.3),
        (moved(lambda v, size: (1, 0, 0, v, 1, 0)), -0.3, 0.3),
        (lambda i, v: ImageOps.solarize(i, int(v)), 0, 256),
        (moved(lambda v, size: (1, 0, v * size[0], 0, 1, 0)), -0.3, 0.3),
        (moved(lambda v, size: (1, 0, 0, 0, 1, v * size[1])), -0.3, 0.3),
    ]


class TorchvisionViews:
    """torchvision's v2 transforms on uint8 tensors: three ops of its RandAugment and an erasure."""

    def __init__(self, work: Work) -> None:
        import torch
        from torchvision.transforms import v2

        self._images = torch.from_numpy(work.images).permute(0, 3, 1, 2)
        end = [
            v2.RandomHorizontalFlip(),
            v2.RandomCrop(work.size, padding=work.padding, padding_mode="reflect"),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(work.mean, work.std),
        ]
        erase = v2.RandomErasing(p=1.0, scale=(0.01, 0.25), ratio=(1.0, 1.0))
        self._weak = v2.Compose(end)
        self._strong = v2.Compose([v2.RandAugment(num_ops=3), erase, *end])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = self._images[index]
        return self._weak(image), self._strong(image)


def _pil(work: Work, threads: int) -> Peer:
    return Loading(PillowViews(work), work, threads, most=8)


def _torchvision(work: Work, threads: int) -> Peer:
    return Loading(TorchvisionViews(work), work, threads, most=6)


def _dali(work: Work, threads: int) -> Peer:
    from fastssl.profiling.peers_native import Dali

    return Dali(work, threads)


def _ffcv(work: Work, threads: int) -> Peer:
    from fastssl.profiling.peers_native import Ffcv

    return Ffcv(work, threads)


PEERS.add("pil", _pil)
PEERS.add("torchvision", _torchvision)
PEERS.add("dali", _dali)
PEERS.add("ffcv", _ffcv)
