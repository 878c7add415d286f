"""A body of another library with our classifier and the extra heads of our networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """A body that returns pooled features, and Linear layers on them."""

    def __init__(self, body: nn.Module, classifier: nn.Linear, heads: Mapping[str, int]) -> None:
        super().__init__()
        self.body = body
        self.classifier = classifier
        size = classifier.in_features
        self.heads = nn.ModuleDict({name: nn.Linear(size, out) for name, out in heads.items()})

    def forward(self, x: Tensor, heads: bool = False) -> Tensor | dict[str, Tensor]:
        """Return logits [n, C], or with `heads` a dict of all outputs."""
        features = torch.flatten(self.body(x), 1)
        logits: Tensor = self.classifier(features)
        if not heads:
            return logits
        extra = {name: head(features) for name, head in self.heads.items()}
        return {"logits": logits, "features": features, **extra}
