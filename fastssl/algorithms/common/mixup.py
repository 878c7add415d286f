"""MixUp over the global batch, and interleaving, which MixMatch and ReMixMatch share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastssl.algorithms.base import Ranks, Tensor, nn
from fastssl.algorithms.common import rng
from fastssl.algorithms.common.losses import forward, frozen_statistics


class Mixed(NamedTuple):
    """This rank's part of a mixed batch, cut into interleaved chunks of one labeled batch each."""

    images: list[Tensor]
    targets: Tensor  # [n, C]
    labeled: Tensor  # [n] 1 where the image with the larger weight is a labeled one, else 0


def mix(
    images: list[Tensor],
    targets: list[Tensor],
    key: Tensor,
    ranks: Ranks,
    *,
    alpha: float,
    per_sample: bool,
) -> Mixed:
    """Mix each image of the global batch with another one; the first group is the labeled one.

    An image keeps the weight max(l, 1 - l), with l drawn from Beta(alpha, alpha). The size of
    each group is a multiple of the first one's. All ranks gather the batch and mix it in the same
    way; each continues with its slice of every chunk, so the result does not depend on the number
    of ranks.
    """
    import torch

    chunk = len(images[0]) * ranks.world
    sizes = [len(group) for group in images]
    all_images = _gather_groups(torch.cat(images), sizes, ranks)
    all_targets = _gather_groups(torch.cat(targets), sizes, ranks)
    count = len(all_images)
    other = rng.permutation(key, 0, count)
    drawn = rng.beta(key, 1, count if per_sample else 1, alpha).to(all_targets.dtype)
    weight = drawn.maximum(1 - drawn)[:, None]  # [n or 1, 1]
    per_image = weight[:, :, None, None].to(all_images.dtype)
    all_images = per_image * all_images + (1 - per_image) * all_images[other]
    all_targets = weight * all_targets + (1 - weight) * all_targets[other]
    labeled = (torch.arange(count, device=all_targets.device) < chunk).to(all_targets.dtype)

    def slices(whole: Tensor) -> list[Tensor]:
        return [ranks.take(part) for part in interleave(torch.split(whole, chunk))]

    return Mixed(
        [part.contiguous(memory_format=torch.channels_last) for part in slices(all_images)],
        torch.cat(slices(all_targets)),
        torch.cat(slices(labeled)),
    )


def _gather_groups(local: Tensor, sizes: list[int], ranks: Ranks) -> Tensor:
    """Gather concatenated groups from all ranks, group by group, in one collective."""
    import torch

    if ranks.world == 1:
        return local.detach()
    by_rank = ranks.gather(local).reshape(ranks.world, *local.shape)
    return torch.cat([group.flatten(0, 1) for group in torch.split(by_rank, sizes, dim=1)])


def interleave(chunks: Sequence[Tensor]) -> list[Tensor]:
    """Swap pieces of chunks, so that the first chunk holds a piece of each.

    Chunk 0 is cut into as many pieces as there are chunks; its piece i is swapped with piece i of
    chunk i. Applying it twice restores the chunks. Only the first chunk updates BatchNorm's
    running statistics, and so they cover labeled and unlabeled images.
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
    """Return the logits of all chunks, one pass each; only the first updates BatchNorm."""
    import torch

    logits = [*forward(model, chunks[0])]
    with frozen_statistics(model):
        for chunk in chunks[1:]:
            logits += forward(model, chunk)
    return torch.cat(logits)


def shared_mean(values: Tensor, weight: Tensor, count: int) -> Tensor:
    """Sum values [n] where weight [n] is 1, over `count`: such images per rank on average.

    After interleaving a rank may hold more or fewer of them. The mean over ranks is still the
    mean over the global batch.
    """
    return (values * weight).sum() / count


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate each square image by its number of quarter turns [U], without a host sync."""
    import torch

    quarters = torch.stack([images.rot90(k, (2, 3)) for k in range(4)])  # [4, U, 3, H, W]
    chosen = quarters[turns, torch.arange(len(images), device=images.device)]
    return chosen.contiguous(memory_format=torch.channels_last)
