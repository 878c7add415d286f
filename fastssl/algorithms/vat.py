"""VAT: the prediction must not change under the small image change that would change it most.

It smooths the prediction around each image where it is least smooth.
Paper: https://arxiv.org/abs/1704.03976. Loss, with ^ for stop-gradient and r a linear ramp:

    H(y, p(x)) + lambda_u * r * KL(^p(w) || p(w + a)) + m * entropy(p(w))
    a = eps * unit(grad_d KL(^p(w) || p(w + xi * d))),  d a random unit vector

The direction is found on the device by `torch.autograd.grad`, which leaves no gradient of the
parameters, and in full precision: half precision would round xi * d away. As in TorchSSL,
unlabeled passes leave BatchNorm's running statistics unchanged, lambda_u is 0.3, eps 6, the ramp
covers 0.4 of training, and the entropy term has no ramp. Unlike TorchSSL, xi is 0.01: in single
precision its 1e-6 gives a direction that is mostly rounding error (cosine about 0.1 with the true
one).
"""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Batch, Nets, Ranks, State, StepOutput, Tensor, algorithm, nn
from fastssl.algorithms.common import losses, rng
from fastssl.algorithms.common.settings import RampSettings


class VATSettings(RampSettings):
    """Settings of VAT."""

    unlabeled_weight: float = Field(0.3, ge=0)
    """Weight of the divergence after the ramp (lambda_u)."""

    entropy_weight: float = Field(0.06, ge=0)
    """Weight of the entropy of predictions on weak views."""

    radius: float = Field(6.0, gt=0)
    """Norm of the adversarial change (eps)."""

    probe: float = Field(0.01, gt=0)
    """Norm of the change with which its direction is probed (xi)."""

    iterations: int = Field(1, ge=1)
    """Power iterations that find the direction."""


@algorithm(
    "vat",
    views={"weak": "weak"},
    forwards="4: labeled; weak; weak + probe, with its gradient; weak + adversarial change",
    config=VATSettings,
)
def step(
    nets: Nets, batch: Batch, state: State, config: VATSettings, progress: Tensor, ranks: Ranks
) -> StepOutput:
    """Compute the loss of one step of VAT."""
    import torch.nn.functional as F

    (logits,) = losses.forward(nets.student, batch.images)
    images, bare = batch.views["weak"], losses.unwrap_ddp(nets.student)
    with losses.frozen_statistics(nets.student):
        (weak,) = losses.forward(nets.student, images)
        change = adversarial(bare, images, weak.detach(), batch.key, config, ranks)
        (moved,) = losses.forward(nets.student, images + change)
    labeled_loss = F.cross_entropy(logits, batch.labels)
    target = weak.detach().softmax(dim=1)
    entropy_of_target = losses.soft_cross_entropy(weak.detach(), target)
    divergence = losses.soft_cross_entropy(moved, target) - entropy_of_target
    entropy = losses.soft_cross_entropy(weak, weak.softmax(dim=1))
    weight = config.unlabeled_weight * losses.ramp(progress, config.ramp)
    return StepOutput(
        loss=labeled_loss + weight * divergence + config.entropy_weight * entropy,
        metrics=losses.loss_metrics(labeled=labeled_loss, unlabeled=divergence, entropy=entropy),
    )


def adversarial(
    model: nn.Module, images: Tensor, clean: Tensor, key: Tensor, config: VATSettings, ranks: Ranks
) -> Tensor:
    """Return the change [U, 3, H, W] of norm `radius` that changes the prediction most."""
    import torch

    count = images.numel()
    noise = rng.normal(key, 0, count, offset=ranks.rank * count)
    direction = unit(noise.view(images.shape).to(images, memory_format=torch.channels_last))
    half = torch.is_autocast_enabled(images.device.type)
    with torch.autocast(images.device.type, enabled=False), torch.enable_grad():
        if half:
            # Compare with a full-precision pass: the rounding of a half-precision one is larger
            # than what the probe changes.
            with torch.no_grad():
                (clean,) = losses.forward(model, images)
        target = clean.softmax(dim=1)

        def divergence(probe: Tensor) -> Tensor:  # up to a constant
            return losses.soft_cross_entropy(losses.forward(model, images + probe)[0], target)

        for _ in range(config.iterations):
            direction = unit(losses.input_gradient(divergence, config.probe * direction))
    return config.radius * direction


def unit(vectors: Tensor) -> Tensor:
    """Scale each image to norm 1."""
    lengths = vectors.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()
    return vectors / lengths.clamp_min(1e-30)
