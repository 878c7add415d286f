"""torchvision's ResNet-50 with the extra heads of our networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchvision.models import resnet50


class ResNet50(nn.Module):
    """ResNet-50 (v1.5) with random weights and extra heads on the pooled features."""

    def __init__(self, classes: int, heads: Mapping[str, int]) -> None:
        super().__init__()
        self.body = resnet50(weights=None, num_classes=classes)
        self.classifier = self.body.fc
        size = self.classifier.in_features
        self.body.fc = nn.Identity()
        self.heads = nn.ModuleDict({name: nn.Linear(size, out) for name, out in heads.items()})

    def forward(self, x: Tensor, heads: bool = False) -> Tensor | dict[str, Tensor]:
        """Return logits [n, C], or with `heads` a dict of all outputs."""
        features = torch.flatten(self.body(x), 1)
        logits: Tensor = self.classifier(features)
        if not heads:
            return logits
        extra = {name: head(features) for name, head in self.heads.items()}
        return {"logits": logits, "features": features, **extra}
