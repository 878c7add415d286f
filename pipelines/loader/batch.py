"""What one step sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of a step, on the device; true labels of unlabelled images are not in it."""

    images: Tensor  # [B, 3, H, W] weak views of the labelled images, normalised, channels-last
    labels: Tensor  # [B] int64
    views: dict[str, Tensor]  # name -> [U, 3, H, W], as the algorithm declared them
    position: Tensor  # [U] int64, places in the unlabelled set
    global_positions: (
        Tensor  # [U * ranks] int64, the positions of the whole global batch, in its order
    )
    key: Tensor  # [2] int64, for randomness inside the step
