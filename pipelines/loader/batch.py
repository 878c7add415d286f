"""The batch that a step function gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of a step, on the device, without the true labels of unlabeled images.

    B labeled and U unlabeled images. Images are normalized float32 in channels-last format.
    """

    images: Tensor  # [B, 3, H, W] views of the labeled images, weak ones by default
    labels: Tensor  # [B] int64
    # name -> [U, 3, H, W], as the algorithm declared them; empty in steps without unlabeled images
    views: dict[str, Tensor]
    position: Tensor  # [U] int64, positions in the unlabeled set
    global_positions: Tensor  # [U * ranks] int64, those of the global batch, in its order
    key: Tensor  # [2] int64, key of the random numbers drawn inside the step
