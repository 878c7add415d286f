"""A small convolutional network for runs of minutes, in the manner of the CIFAR-10 speed runs.

There are no shortcuts. Each block pools before its first BatchNorm, so that normalization and
activation work on a quarter of the pixels, and every width is a multiple of 8, which bf16
arithmetic on CPUs and GPUs takes without padding. See
https://github.com/KellerJordan/cifar10-airbench (https://arxiv.org/abs/2404.00498).

    stem    conv 2x2 to W channels, BatchNorm, SiLU
    block   conv 3x3, max-pool 2, BatchNorm, SiLU, conv 3x3, BatchNorm, SiLU
            three of them, with 4/3 W, 4 W and 8 W channels
    then    global mean, linear classifier
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from torch import nn

from fastssl.models.classifier import WithClassifier
from pipelines.errors import ConfigError

SMALLEST = 9  # pixels: the stem leaves 8, and each of the three blocks halves them


class Fast(WithClassifier):
    """Stem, three blocks, global mean, classifier and extra heads."""

    def __init__(
        self, classes: int, width: int, heads: Mapping[str, int], size: tuple[int, int] | None
    ) -> None:
        if size is not None and min(size) < SMALLEST:
            raise ConfigError(
                f"fast-{width} takes images of at least {SMALLEST} pixels, not {min(size)}",
                f"type image_size={SMALLEST} or more, or a wrn-D-K as the model",
            )
        # 4/3 W to the nearest multiple of 8
        widths = [width, 8 * round(width / 6), 4 * width, 8 * width]
        stem = nn.Sequential(
            # Without padding: the borders cost one row and one column of pixels.
            nn.Conv2d(3, width, 2, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
        )
        blocks = [_block(*pair) for pair in pairwise(widths)]
        body = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1))
        super().__init__(body, nn.Linear(widths[-1], classes), heads)
        self.apply(_init)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    """Map [n, inputs, H, W] to [n, outputs, H // 2, W // 2]."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        # Half of the usual 1 / sqrt(F): the first predictions are close to uniform.
        nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)
        nn.init.zeros_(module.bias)
