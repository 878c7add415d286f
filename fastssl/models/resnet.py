"""torchvision's ResNet-50 with the extra heads of our networks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torchvision.models import resnet50

from fastssl.models.classifier import WithClassifier


class ResNet50(WithClassifier):
    """ResNet-50 (v1.5) with random weights and extra heads on the pooled features."""

    def __init__(self, classes: int, heads: Mapping[str, int]) -> None:
        body = resnet50(weights=None, num_classes=classes)
        classifier = body.fc
        body.fc = nn.Identity()
        super().__init__(body, classifier, heads)
