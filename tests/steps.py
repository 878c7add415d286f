"""Small networks and random batches for the tests of step functions."""

import copy
from typing import Any

import torch
from torch import nn

from fastssl.algorithms import Algorithm, DatasetInfo, Nets
from fastssl.models import build
from pipelines.loader.batch import Batch

CLASSES, LABELED, UNLABELED, SIZE = 5, 6, 12, 8
IMAGES = 40  # unlabeled images


def facts(device: str = "cpu", dtype: torch.dtype = torch.float32) -> DatasetInfo:
    shares = torch.tensor([0.3, 0.1, 0.2, 0.25, 0.15], dtype=torch.float64).to(device, dtype)
    return DatasetInfo(CLASSES, IMAGES, shares, device)


def make_nets(dtype: torch.dtype = torch.float32, seed: int = 0) -> Nets:
    """Give a student and another network as its teacher, confident enough for some thresholds."""
    torch.manual_seed(seed)
    student, teacher = (
        build("wrn-10-1", CLASSES, heads={"rotation": 4}, bn_momentum=0.1).to(dtype)
        for _ in range(2)
    )
    for net in (student, teacher):
        with torch.no_grad():
            net.classifier.weight.mul_(6)
            for module in net.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.uniform_(-0.3, 0.3)
    teacher.requires_grad_(False)
    return Nets(student, teacher)


def make_batch(
    algorithm: Algorithm,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    unlabeled: int = UNLABELED,
) -> Batch:
    """Give a random batch with the views that the algorithm declares."""
    source = torch.Generator().manual_seed(seed)
    unlabeled = unlabeled if algorithm.views else 0

    def photos(count: int) -> torch.Tensor:
        drawn = torch.randn(count, 3, SIZE, SIZE, generator=source, dtype=torch.float64)
        return drawn.to(dtype).contiguous(memory_format=torch.channels_last)

    position = torch.randperm(IMAGES, generator=source)[:unlabeled]
    return Batch(
        images=photos(LABELED),
        labels=torch.randint(CLASSES, (LABELED,), generator=source),
        views={name: photos(unlabeled) for name in algorithm.views},
        position=position,
        global_positions=position,
        key=torch.tensor([seed * 977 + 5, 2**40 + seed]),
    )


def gradients(net: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}


def snapshot(nets: Nets) -> Any:
    return copy.deepcopy((nets.student.state_dict(), nets.teacher.state_dict()))


class TinyNet(nn.Module):
    """The contract of our networks in two layers, for tests that compile."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.classifier = nn.Linear(6, CLASSES)
        self.rotation = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, heads: bool = False) -> Any:
        features = self.bn(self.conv(x)).relu().mean((2, 3))
        logits = self.classifier(features)
        if not heads:
            return logits
        return {"logits": logits, "features": features, "rotation": self.rotation(features)}


def tiny_nets() -> Nets:
    torch.manual_seed(0)
    student, teacher = TinyNet(), TinyNet()
    with torch.no_grad():
        student.classifier.weight.mul_(8)
    return Nets(student, teacher.requires_grad_(False))
