"""Peers of the views: Pillow and torchvision in a DataLoader, DALI and FFCV.

A peer gets the images once. `epoch` makes one weak and one strong view of each image, as normalized
float batches, and returns the number of views. It starts and ends without pending work, so that
no peer works while another one is measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from fastssl.profiling.views import Work
from pipelines.registry import Registry
from tools.bench.view_peers_native import Dali, Ffcv


class Peer(Protocol):
    """Makes views."""

    def epoch(self) -> int:
        """Make the views of every image; return the number of views."""

    def close(self) -> None:
        """End threads and processes."""


PEERS: Registry[Callable[[Work, int], Peer]] = Registry("peer")  # (work, threads) -> peer


class Loading:
    """A DataLoader with persistent workers around a dataset of pairs of views."""

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


PEERS.add("pil", _pil)
PEERS.add("torchvision", _torchvision)
PEERS.add("dali", Dali)
PEERS.add("ffcv", Ffcv)
