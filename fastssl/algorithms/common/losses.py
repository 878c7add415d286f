"""Pure pieces that several algorithms share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fastssl.algorithms.base import Nets
    from pipelines.loader.batch import Batch

Forward = Literal["together", "split"]
"""How labelled, weak and strong images pass the network: see `three_logits`."""


def full(tensor: Tensor) -> Tensor:
    """Leave half precision: losses, softmax and curricula are computed in at least fp32."""
    import torch

    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def forward(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Give the logits of several inputs, run as one batch, so that BatchNorm sees them all."""
    import torch

    if len(inputs) == 1:
        return (full(model(inputs[0])),)
    logits = full(model(torch.cat(inputs)))
    return torch.split(logits, [len(images) for images in inputs])


def three_logits(nets: Nets, batch: Batch, way: Forward) -> tuple[Tensor, Tensor, Tensor]:
    """Give the logits of labelled images, weak views and strong views.

    `together` is the reference: one forward of all B + 2U images, so that they share BatchNorm
    statistics and weak images get gradient through them. `split` runs the weak views in a pass
    of their own without gradient: about 0.69 of the work at ratio 7, but not the same numbers.
    There the weak pass normalises by its own batch statistics and leaves the running ones as
    they are; labelled and strong images go through one pass that updates them.
    """
    import torch

    weak_images, strong_images = batch.views["weak"], batch.views["strong"]
    if way == "together":
        labeled, weak, strong = forward(nets.student, batch.images, weak_images, strong_images)
        return labeled, weak, strong
    with torch.no_grad(), frozen_statistics(nets.student):
        (weak,) = forward(nets.student, weak_images)
    labeled, strong = forward(nets.student, batch.images, strong_images)
    return labeled, weak, strong


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by batch statistics, as in training, but leave the running ones as they are.

    The buffers are neither copied nor exchanged: BatchNorm is told not to look at them, in the
    one way that BatchNorm, SyncBatchNorm and our own share. A network in eval mode is normalised
    by batch statistics too, which is what Mean Teacher wants of its teacher.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, track) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, track


def bare(model: nn.Module) -> nn.Module:
    """Give the network inside a DDP wrapper, for a gradient that is not the step's own.

    DDP takes every backward through its wrapper for that of the loss and would average too early.
    """
    from torch.nn.parallel import DistributedDataParallel

    return model.module if isinstance(model, DistributedDataParallel) else model


def hard_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Average the weighted cross-entropy over **all** images, not only those with weight."""
    import torch.nn.functional as F

    return (F.cross_entropy(logits, labels, reduction="none") * weight).mean()


def soft_loss(logits: Tensor, target: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Average the weighted cross-entropy against soft targets over all images."""
    return (-(target * logits.log_softmax(dim=1)).sum(dim=1) * weight).mean()


def square_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Average the squared difference of probabilities over images and classes."""
    return (logits.softmax(dim=1) - target).square().mean()


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Move a distribution towards its largest entries."""
    powered = probabilities ** (1 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)


def ramp(progress: Tensor, length: float) -> Tensor:
    """Rise linearly from 0 to 1 over the first `length` of training; 0 means no ramp."""
    return (progress / length).clamp(0, 1) if length else progress.new_ones(())


def average(memory: Tensor, value: Tensor, decay: float) -> Tensor:
    """Move `memory` towards `value` in place; memory that is all zero starts as the value."""
    import torch

    started = memory.abs().sum() > 0
    return memory.copy_(torch.where(started, decay * memory + (1 - decay) * value, value))


def align(probabilities: Tensor, predicted: Tensor, wanted: Tensor) -> Tensor:
    """Distribution alignment: scale classes by wanted over predicted share, then normalise."""
    scaled = probabilities * wanted / predicted.clamp_min(1e-6)
    return scaled / scaled.sum(dim=1, keepdim=True)


def shares(labels: Tensor, classes: int, weight: Tensor | int) -> Tensor:
    """Give the share [C] of each class among all images, counting those with weight."""
    import torch.nn.functional as F

    return (F.one_hot(labels, classes).float().t() * weight).mean(dim=1)


def normalized(values: Tensor, histogram: Tensor) -> Tensor:
    """Divide by the histogram where it is not 0, then scale to sum 1."""
    import torch

    filled = histogram > 0
    ratio = torch.where(filled, values / torch.where(filled, histogram, 1), 0)
    return ratio / ratio.sum().clamp_min(1e-12)


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Differentiate by the argument alone; the compiler traces the functional form only."""
    import torch

    if torch.compiler.is_compiling():
        functional: Tensor = torch.func.grad(function)(at)
        return functional.detach()  # a gradient of it by the parameters is not wanted
    leaf = at.detach().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def losses(**terms: Tensor) -> dict[str, Tensor]:
    """Name the terms of a loss for the record, without their graph."""
    return {f"loss/{name}": term.detach() for name, term in terms.items()}
