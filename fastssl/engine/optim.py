"""SGD as the paper has it: Nesterov, a cosine of 7/16, no decay on biases and BatchNorm."""

from __future__ import annotations

import math

import torch
from torch import nn

from fastssl.config.schema import RunConfig


def build(model: nn.Module, config: RunConfig) -> torch.optim.SGD:
    """Build the optimizer; every 1-D parameter goes without decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=True
    )
    if config.momentum:
        # A first step that is skipped (fp16 overflow) would leave these unwritten.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def learning_rate(config: RunConfig, step: int) -> float:
    """Return the learning rate of a step: lr · cos(7π/16 · k/K)."""
    return config.lr * math.cos(7 * math.pi / 16 * step / config.steps)
