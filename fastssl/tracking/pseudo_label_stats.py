"""Accuracy and coverage of pseudo-labels, if the true labels of unlabeled images are known.

Only the training loop reads true labels, and only for these statistics: no step function sees
them. The sums stay on the device until a log step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastssl.algorithms.base import StepOutput
from fastssl.distributed.collectives import Ranks


class PseudoLabelStats:
    """Sums of seen, trusted and correctly trusted images per true class since the last log step."""

    def __init__(self, truth: Tensor, classes: int) -> None:
        self.truth = truth  # [N] true class of every unlabeled image, -1 if unknown
        self.classes = classes
        self.known = bool((truth >= 0).any())
        self.sums = torch.zeros((3, classes + 1), device=truth.device)

    @torch.no_grad()
    def add(self, out: StepOutput, position: Tensor) -> None:
        """Add a step without a host sync; the last column counts images of unknown class."""
        if not self.known or out.pseudo_label is None or out.trusted is None:
            return
        truth = self.truth[position].long()
        column = torch.where(truth >= 0, truth, self.classes)
        trusted = out.trusted.to(self.sums.dtype)
        right = trusted * (out.pseudo_label == truth)
        self.sums.index_add_(1, column, torch.stack([torch.ones_like(trusted), trusted, right]))

    def read(self, ranks: Ranks) -> dict[str, Any]:
        """Return accuracy and coverage, overall and per class, and reset the sums.

        `tolist` waits for the device.
        """
        if not self.known:
            return {}
        seen, trusted, right = ranks.mean(self.sums)[:, : self.classes].double().tolist()
        self.sums.zero_()
        if not sum(seen):
            return {}
        found: dict[str, Any] = {"pseudo/coverage": sum(trusted) / sum(seen)}
        if sum(trusted):
            found["pseudo/accuracy"] = sum(right) / sum(trusted)
        found["pseudo_class_coverage"] = [ratio(t, s) for t, s in zip(trusted, seen, strict=True)]
        found["pseudo_class_accuracy"] = [ratio(r, t) for r, t in zip(right, trusted, strict=True)]
        return found


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, or None if `whole` is 0."""
    return round(part / whole, 6) if whole else None
