"""Wide ResNet in the two variants that published numbers come from.

`torchssl`: in the first block of every stage after the first, the first convolution gets the raw
input, and that block's first BatchNorm is not used. It is kept, without gradient, so that
parameter counts and checkpoints agree with the published code. `google`: BatchNorm and activation
precede the first convolution of every block.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=1e-3)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, variant: str, first: bool) -> None:
        super().__init__()
        self.bn1 = _norm(inputs)
        self.act = nn.LeakyReLU(0.1, inplace=True)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.bn2 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else None
        # Only in the first block of the network does the shortcut get the activated input.
        self.activate_shortcut = first and self.shortcut is not None
        self.activate = self.shortcut is None or self.activate_shortcut or variant == "google"

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, H, W] to [n, outputs, H / stride, W / stride]."""
        activated = self.act(self.bn1(x)) if self.activate else x
        out: Tensor = self.conv2(self.act(self.bn2(self.conv1(activated))))
        # In place: nothing else uses the output of the second convolution.
        if self.shortcut is None:
            return out.add_(x)
        return out.add_(self.shortcut(activated if self.activate_shortcut else x))


class WideResNet(nn.Module):
    """Stem, three or four stages, BatchNorm, activation, global mean, linear heads."""

    def __init__(
        self,
        classes: int,
        stages: int,
        blocks: int,
        widen: int,
        variant: str,
        heads: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        layers: list[nn.Module] = []
        inputs = 16
        for stage in range(stages):
            outputs = 16 * widen * 2**stage
            stride = 1 if stage == 0 and stages == 3 else 2
            for block in range(blocks):
                first = block == 0
                layers.append(
                    Block(inputs, outputs, stride if first else 1, variant, first and stage == 0)
                )
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.bn = _norm(inputs)
        self.act = nn.LeakyReLU(0.1, inplace=True)
        self.classifier = nn.Linear(inputs, classes)
        self.heads = nn.ModuleDict({name: nn.Linear(inputs, size) for name, size in heads.items()})
        self.apply(_init)

    def forward(self, x: Tensor, heads: bool = False) -> Tensor | dict[str, Tensor]:
        """Return logits [n, C], or with `heads` a dict of all outputs."""
        features = self.act(self.bn(self.blocks(self.stem(x)))).mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        if not heads:
            return logits
        extra = {name: head(features) for name, head in self.heads.items()}
        return {"logits": logits, "features": features, **extra}


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        # a = 0, as in the published code: the gain of a plain ReLU. Biases keep torch's default.
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
        nn.init.zeros_(module.bias)
