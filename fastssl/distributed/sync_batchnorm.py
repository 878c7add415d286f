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
    """Replace every BatchNorm2d by the one over ranks, in place and with the same weights."""
    for module in model.modules():
        # The classes add no state; only `forward` differs.
        if type(module) is nn.BatchNorm2d:
            module.__class__ = RankBatchNorm2d
        elif type(module).__name__ == "BatchNormAct2d":
            module.__class__ = RankBatchNormAct2d
    return model


class RankBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose batch is the global one; every rank must hold equally many images."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [n, C, H, W]."""
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


class RankBatchNormAct2d(RankBatchNorm2d):
    """The same for timm's BatchNorm, which applies an activation, too."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [n, C, H, W] and apply the activation."""
        made: Tensor = self.act(self.drop(super().forward(input)))  # type: ignore[operator]
        return made


class _Normalize(torch.autograd.Function):
    """Normalize by the mean and variance over all ranks.

    Only torch's own BatchNorm kernels touch the images: sums over the channels of a channels-last
    tensor by other operations took twenty times as long.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        moments = torch.batch_norm_update_stats(_full(x), None, None, 0.0)
        mean, variance = (moment.double() for moment in moments)
        # a rank's second moment; all ranks hold equally many images, so moments just average
        mean, square = _average(torch.stack([mean, variance + mean**2]))
        variance = (square - mean**2).clamp_min(0)
        like = weight.dtype
        ctx.save_for_backward(x, weight, mean.to(like), variance.to(like))
        ctx.eps = eps
        normalized = F.batch_norm(x, mean.to(like), variance.to(like), weight, bias, eps=eps)
        ctx.mark_non_differentiable(mean, variance)
        return normalized, mean, variance

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, variance = ctx.saved_tensors
        full, images = _full(grad), _full(x)
        # As if mean and variance were constants; then what passes through them.
        by_input, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            full, images, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        count = x.numel() // x.shape[1]
        sums = torch.stack([by_bias, by_weight]).double() / count
        shift, slope = _average(sums).to(full.dtype)
        scale = -weight * (variance + ctx.eps).rsqrt()
        by_input += F.batch_norm(images, mean, variance, scale * slope, scale * shift, eps=ctx.eps)
        return by_input.to(x.dtype), by_weight, by_bias, None


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _average(values: Tensor) -> Tensor:
    """Average over ranks; gathering a few numbers takes one round, a reduction two."""
    world = dist.get_world_size()
    every = values.new_empty(world * len(values), *values.shape[1:])
    dist.all_gather_single(every, values)
    return every.view(world, *values.shape).mean(dim=0)
