"""A training step of FlexMatch as public code writes it.

Eager, NCHW, an EMA updated tensor by tensor, and thresholds from a count of all pseudo-labels in
Python. It computes the same loss as our step.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastssl.models.wide_resnet import Block
from pipelines.loader.batch import Batch


class Reference:
    """Model, optimizer, EMA weights and the pseudo-label of every image (-1: none yet)."""

    def __init__(self, model: nn.Module, images: int, classes: int, threshold: float) -> None:
        self.model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        for module in model.modules():
            if isinstance(module, nn.LeakyReLU):
                module.inplace = False
            if isinstance(module, Block) and not module.activate:
                module.register_forward_pre_hook(_unused)
        decayed = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": 5e-4},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=0.03, momentum=0.9, nesterov=True)
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.marks = torch.full((images,), -1)
        self.images, self.classes, self.threshold = images, classes, threshold

    def step(self, batch: Batch) -> Tensor:
        """Run one step; return the loss."""
        inputs = torch.cat([batch.images, batch.views["weak"], batch.views["strong"]])
        logits = self.model(inputs.contiguous())
        labeled = len(batch.labels)
        own, (weak, strong) = logits[:labeled], logits[labeled:].chunk(2)
        confidence, pseudo_label = weak.detach().softmax(dim=-1).max(dim=-1)
        used = confidence >= self.thresholds()[pseudo_label]
        confident = confidence >= self.threshold
        self.marks[batch.position[confident]] = pseudo_label[confident]
        each = F.cross_entropy(strong, pseudo_label, reduction="none")
        loss: Tensor = F.cross_entropy(own, batch.labels) + (each * used.to(each.dtype)).mean()
        self.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.average[name] = 0.999 * self.average[name] + 0.001 * parameter
        return loss.detach()

    def thresholds(self) -> Tensor:
        """Return the threshold of each class from a count of all pseudo-labels."""
        counts = Counter(self.marks.tolist())
        levels = torch.zeros(self.classes)
        most = max(counts.values())
        if max(counts) >= 0:
            for number in range(self.classes):
                share = counts[number] / most
                levels[number] = self.threshold * share / (2 - share)
        return levels


def _unused(block: Block, inputs: tuple[Tensor, ...]) -> None:
    """Compute BatchNorm and activation whose output is unused, as the published network does."""
    block.act(block.bn1(inputs[0]))
