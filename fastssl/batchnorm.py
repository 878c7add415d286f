"""BatchNorm over all ranks for CPUs, where torch has none: two ranks compute what one would.

Statistics and their gradients are combined over ranks in double precision. In one process plain
BatchNorm is used, and on CUDA torch's SyncBatchNorm; this class is for gloo alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def convert(model: nn.Module) -> nn.Module:
    """Exchange every BatchNorm2d in place for the one over ranks, with the same weights."""
    for name, child in model.named_children():
        if type(child) is nn.BatchNorm2d:
            setattr(model, name, _converted(child))
        else:
            convert(child)
    return model


def _converted(norm: nn.BatchNorm2d) -> RankBatchNorm2d:
    other = RankBatchNorm2d(norm.num_features, norm.eps, norm.momentum)
    other.weight, other.bias = norm.weight, norm.bias
    other.running_mean, other.running_var = norm.running_mean, norm.running_var
    other.num_batches_tracked = norm.num_batches_tracked
    other.training = norm.training
    return other


class RankBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose batch is the global one; every rank must hold equally many images."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [n, C, H, W]."""
        if not self.training:
            return super().forward(input)
        normalized, mean, variance = _Normalize.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            self._track(mean, variance, input.numel() // input.shape[1] * dist.get_world_size())
        return normalized  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        unbiased = variance * (count / max(count - 1, 1))
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


class _Normalize(torch.autograd.Function):
    """Normalise by the mean and variance over all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        variance, mean = torch.var_mean(_full(x), dim=(0, 2, 3), correction=0)
        mean, variance = mean.double(), variance.double()
        # a rank's second moment; all ranks hold equally many images, so moments just average
        mean, square = _average(torch.stack([mean, variance + mean**2]))
        variance = (square - mean**2).clamp_min(0)
        scale = (variance + eps).rsqrt()
        like = weight.dtype
        ctx.save_for_backward(x, weight, mean.to(like), scale.to(like))
        normalized = F.batch_norm(x, mean.to(like), variance.to(like), weight, bias, eps=eps)
        ctx.mark_non_differentiable(mean, variance)
        return normalized, mean, variance

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, scale = ctx.saved_tensors
        full = _full(grad)
        standard = (_full(x) - _wide(mean)) * _wide(scale)
        by_bias = full.sum(dim=(0, 2, 3))
        by_weight = (full * standard).sum(dim=(0, 2, 3))
        count = x.numel() // x.shape[1]
        shift, slope = _average(torch.stack([by_bias, by_weight]).double() / count).to(full.dtype)
        by_input = (full - _wide(shift) - standard * _wide(slope)) * _wide(weight * scale)
        return by_input.to(x.dtype), by_weight, by_bias, None


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _wide(channels: Tensor) -> Tensor:
    return channels[:, None, None]


def _average(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values / dist.get_world_size()
