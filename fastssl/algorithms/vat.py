"""VAT: the answer must not change under the small step in the image that would change it most.

It smooths the answer around each image, just where it is roughest.
Paper: https://arxiv.org/abs/1704.03976. Loss, with ^ for stop-gradient and r a linear ramp:

    H(y, p(x)) + lam * r * KL(^p(w) || p(w + a)) + m * entropy(p(w))
    a = eps * unit(grad_d KL(^p(w) || p(w + xi * d))),  d a random unit vector

The direction is found on the device by `torch.autograd.grad`, which leaves no parameter gradient
behind, and in full precision: half of it would round xi * d away. As TorchSSL: unlabelled passes
leave BatchNorm's running statistics alone, lam 0.3, eps 6, ramp over 0.4 of training, and an
entropy term without ramp. Not as TorchSSL: xi is 0.01, for in single precision its 1e-6 gives a
direction that is mostly rounding error (cosine about 0.1 with the true one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm
from fastssl.algorithms.common import rng
from fastssl.algorithms.common.losses import (
    bare,
    forward,
    frozen_statistics,
    gradient,
    losses,
    ramp,
    soft_loss,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fastssl.algorithms.base import Batch, Nets, Ranks, State


class VATSettings(Settings):
    """Settings of VAT."""

    unlabeled_weight: float = Field(0.3, ge=0)
    """Weight of the divergence after the ramp (lambda_u)."""

    entropy_weight: float = Field(0.06, ge=0)
    """Weight of the entropy of predictions on weak views."""

    radius: float = Field(6.0, gt=0)
    """Length of the adversarial step (eps)."""

    probe: float = Field(0.01, gt=0)
    """Length of the step with which its direction is probed (xi)."""

    iterations: int = Field(1, ge=1)
    """Power iterations that find the direction."""

    ramp: float = Field(0.4, ge=0, le=1)
    """Share of training over which the unlabelled weight rises from 0; 0 for no ramp."""


@algorithm(
    "vat",
    views={"weak": "weak"},
    config=VATSettings,
    forwards="4: labelled; weak; weak + probe, with its gradient; weak + adversarial step",
)
def step(
    nets: Nets, batch: Batch, state: State, config: VATSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """One step of VAT."""
    import torch.nn.functional as F

    (logits,) = forward(nets.student, batch.images)
    images = batch.views["weak"]
    with frozen_statistics(nets.student):
        (weak,) = forward(nets.student, images)
        step_away = adversarial(bare(nets.student), images, weak.detach(), batch.key, config, ranks)
        (moved,) = forward(nets.student, images + step_away)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    target = weak.detach().softmax(dim=1)
    divergence = soft_loss(moved, target) - soft_loss(weak.detach(), target)
    entropy = soft_loss(weak, weak.softmax(dim=1))
    weight = config.unlabeled_weight * ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * divergence + config.entropy_weight * entropy,
        metrics=losses(labeled=labeled_loss, unlabeled=divergence, entropy=entropy),
    )


def adversarial(
    model: nn.Module, images: Tensor, clean: Tensor, key: Tensor, config: VATSettings, ranks: Ranks
) -> Tensor:
    """Find the step [U, 3, H, W] of length `radius` that changes the answer most."""
    import torch

    count = images.numel()
    noise = rng.normal(key, 0, count, offset=ranks.rank * count)
    direction = unit(noise.view(images.shape).to(images, memory_format=torch.channels_last))
    half = torch.is_autocast_enabled(images.device.type)
    with torch.autocast(images.device.type, enabled=False), torch.enable_grad():
        if half:
            with torch.no_grad():  # what the probe changes must not drown in half precision
                (clean,) = forward(model, images)
        target = clean.softmax(dim=1)

        def change(probe: Tensor) -> Tensor:  # has the gradient of the divergence
            return soft_loss(forward(model, images + probe)[0], target)

        for _ in range(config.iterations):
            direction = unit(gradient(change, config.probe * direction))
    return config.radius * direction


def unit(vectors: Tensor) -> Tensor:
    """Scale each image to length 1."""
    lengths = vectors.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()
    return vectors / lengths.clamp_min(1e-30)
