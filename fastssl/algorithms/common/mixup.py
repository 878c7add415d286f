"""MixUp over the global batch, and interleaving: what MixMatch and ReMixMatch share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fastssl.algorithms.common import rng
from fastssl.algorithms.common.losses import forward, frozen_statistics

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fastssl.distributed.collectives import Ranks


class Mixed(NamedTuple):
    """A mixed batch, cut into chunks of one labelled batch each, interleaved, this rank's part."""

    images: list[Tensor]
    targets: Tensor  # [n, C]
    labeled: Tensor  # [n] 1 where the heavier part of the mix is a labelled image, else 0


def mix(
    images: list[Tensor],
    targets: list[Tensor],
    key: Tensor,
    ranks: Ranks,
    *,
    alpha: float,
    per_sample: bool,
) -> Mixed:
    """Mix each image of the global batch with another one; the first group is the labelled one.

    The weight of an image itself is max(l, 1 - l), l from Beta(alpha, alpha). Every group's size
    is a multiple of the first one's. All ranks gather the batch and mix it alike, and each goes
    on with its slice of every chunk, so many ranks do what one would.
    """
    import torch

    chunk = len(images[0]) * ranks.world
    sizes = [len(group) for group in images]
    pictures = _everyone(torch.cat(images), sizes, ranks)
    wanted = _everyone(torch.cat(targets), sizes, ranks)
    count = len(pictures)
    other = rng.permutation(key, 0, count)
    drawn = rng.beta(key, 1, count if per_sample else 1, alpha).to(wanted.dtype)
    weight = drawn.maximum(1 - drawn)[:, None]  # [n or 1, 1]
    across = weight[:, :, None, None].to(pictures.dtype)
    pictures = across * pictures + (1 - across) * pictures[other]
    wanted = weight * wanted + (1 - weight) * wanted[other]
    labeled = (torch.arange(count, device=wanted.device) < chunk).to(wanted.dtype)
    return Mixed(
        [
            ranks.take(part).contiguous(memory_format=torch.channels_last)
            for part in interleave(torch.split(pictures, chunk))
        ],
        torch.cat([ranks.take(part) for part in interleave(torch.split(wanted, chunk))]),
        torch.cat([ranks.take(part) for part in interleave(torch.split(labeled, chunk))]),
    )


def _everyone(local: Tensor, sizes: list[int], ranks: Ranks) -> Tensor:
    """Gather groups that lie one after the other, so that each group is whole: one collective."""
    import torch

    if ranks.world == 1:
        return local.detach()
    by_rank = ranks.gather(local).reshape(ranks.world, *local.shape)
    return torch.cat([group.flatten(0, 1) for group in torch.split(by_rank, sizes, dim=1)])


def interleave(chunks: Sequence[Tensor]) -> list[Tensor]:
    """Exchange parts of chunks, so that the first holds a piece of every chunk.

    Chunk 0 is cut into as many pieces as there are chunks, and its piece i changes places with
    piece i of chunk i. Doing it twice undoes it. BatchNorm's running statistics, which only the
    first chunk moves, thus see all kinds of images.
    """
    import torch

    count, size = len(chunks), len(chunks[0])
    small, larger = divmod(size, count)
    sizes = [small + (i >= count - larger) for i in range(count)]
    pieces = [list(torch.split(chunk, sizes)) for chunk in chunks]
    for i in range(1, count):
        pieces[0][i], pieces[i][i] = pieces[i][i], pieces[0][i]
    return [torch.cat(row) for row in pieces]


def forward_chunks(model: nn.Module, chunks: list[Tensor]) -> Tensor:
    """Give the logits of all chunks, each a pass of its own; the first alone moves BatchNorm."""
    import torch

    logits = [*forward(model, chunks[0])]
    with frozen_statistics(model):
        for chunk in chunks[1:]:
            logits += forward(model, chunk)
    return torch.cat(logits)


def shared_mean(values: Tensor, weight: Tensor, count: int) -> Tensor:
    """Average values [n] where weight [n] is 1; `count` is a rank's fair share of such images.

    After interleaving a rank may hold more or fewer of them than its share; the mean over ranks
    is the mean over the global batch all the same.
    """
    return (values * weight).sum() / count


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each square image by its number of quarters, without asking the host which."""
    import torch

    quarters = torch.stack([images.rot90(k, (2, 3)) for k in range(4)])  # [4, U, 3, H, W]
    chosen = quarters[turns, torch.arange(len(images), device=images.device)]
    return chosen.contiguous(memory_format=torch.channels_last)
