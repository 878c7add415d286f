"""Forward passes, losses and moving averages that several algorithms share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastssl.algorithms.base import (
    Batch,
    DatasetInfo,
    Nets,
    Ranks,
    State,
    StepOutput,
    Tensor,
    nn,
)
from fastssl.algorithms.common.settings import AlignmentSettings, WeakStrongSettings

ROUNDED_TO = 32  # strong views of a pass on a CPU; few shapes let it reuse memory and kernels


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Convert half precision to fp32: softmax, losses and thresholds need it."""
    import torch

    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def forward(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of several inputs, run as one batch: they share BatchNorm statistics."""
    import torch

    if len(inputs) == 1:
        return (at_least_fp32(model(inputs[0])),)
    logits = at_least_fp32(model(torch.cat(inputs)))
    return torch.split(logits, [len(images) for images in inputs])


class Passes:
    """The forward passes of one step: first what decides which images are trusted, then the rest.

    `together` is what TorchSSL does: one forward pass of all B + 2U images, which share BatchNorm
    statistics, so that weak views get gradient through them. `split` runs the weak views in a
    pass of their own without gradient: about 0.69 of the work at ratio 7, but other numbers. The
    weak pass then normalizes by its own batch statistics and leaves the running ones unchanged;
    labeled and strong images go through one pass that updates them. `skip` is `split` without the
    strong views of images that are not trusted. They have no part in the loss, which is therefore
    the same number if BatchNorm is frozen; else the statistics of the pass, and with them all
    its logits, are those of fewer images.
    """

    def __init__(self, nets: Nets, batch: Batch, config: WeakStrongSettings, ranks: Ranks) -> None:
        """Compute `weak`, the logits [U, C] of the weak views."""
        import torch

        self.student, self.batch, self.config, self.ranks = nets.student, batch, config, ranks
        self.done: tuple[Tensor, Tensor] | None = None
        weak_images, strong_images = batch.views["weak"], batch.views["strong"]
        if config.forward == "together":
            labeled, self.weak, strong = forward(
                nets.student, batch.images, weak_images, strong_images
            )
            self.done = labeled, strong
            return
        model = nets.teacher if config.pseudo_labels == "teacher" else nets.student
        with torch.no_grad(), frozen_statistics(model):
            (self.weak,) = forward(model, weak_images)

    def finish(self, trusted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of labeled images [B, C] and strong views [U, C], and `trusted` [U].

        Skipped views have the logits 0, and beyond `slots` trusted becomes 0.
        """
        import torch

        if self.done:
            return *self.done, trusted
        images = self.batch.views["strong"]
        if self.config.forward == "split":
            labeled, strong = forward(self.student, self.batch.images, images)
            return labeled, strong, trusted
        # Trusted images first, in the order of the batch.
        kept = trusted.argsort(descending=True, stable=True)[: self._room(trusted)]
        few = images[kept].contiguous(memory_format=torch.channels_last)
        labeled, strong = forward(self.student, self.batch.images, few)
        trusted = trusted * torch.zeros_like(trusted).index_fill(0, kept, 1)
        full = strong.new_zeros(len(images), strong.shape[1])
        return labeled, full.index_copy(0, kept, strong), trusted

    def _room(self, trusted: Tensor) -> int:
        """Return the number of strong views in the pass.

        Fixed where counting the trusted images would wait for a device or recompile the step. On
        a CPU it is their number, rounded up, on the rank that has most of them: the synchronized
        BatchNorm expects equally many images of every rank.
        """
        import torch

        room = len(trusted)
        if self.config.slots:
            room = min(room, -(-self.config.slots // self.ranks.world))
        if trusted.device.type != "cpu" or torch.compiler.is_compiling():
            return room
        most = self.ranks.max(int((trusted > 0).sum()))
        return min(room, -(-most // ROUNDED_TO) * ROUNDED_TO)


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize by batch statistics, as in training, but leave the running ones unchanged.

    No buffer is copied: `track_running_stats=False` makes BatchNorm, SyncBatchNorm and our own
    synchronized one ignore their buffers. A network in eval mode is normalized by batch
    statistics too, which is what Mean Teacher needs for its teacher.
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


def unwrap_ddp(model: nn.Module) -> nn.Module:
    """Return the network inside a DDP wrapper, for a gradient that is not that of the loss.

    DDP takes every backward pass through its wrapper for the one of the step, and would average
    gradients too early.
    """
    from torch.nn.parallel import DistributedDataParallel

    return model.module if isinstance(model, DistributedDataParallel) else model


def masked_cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted cross-entropy, averaged over **all** images, also those of weight 0."""
    import torch.nn.functional as F

    return (F.cross_entropy(logits, labels, reduction="none") * weight).mean()


def soft_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Return the weighted cross-entropy with soft targets [n, C], averaged over all images."""
    return (-(target * logits.log_softmax(dim=1)).sum(dim=1) * weight).mean()


def squared_error(logits: Tensor, target: Tensor) -> Tensor:
    """Return the squared difference of probabilities, averaged over images and classes."""
    return (logits.softmax(dim=1) - target).square().mean()


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Raise probabilities [n, C] to the power 1 / temperature and normalize them."""
    powered = probabilities ** (1 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)


def ramp(progress: Tensor, length: float) -> Tensor:
    """Rise linearly from 0 to 1 over the first `length` of training; constant 1 for length 0."""
    return (progress / length).clamp(0, 1) if length else progress.new_ones(())


def update_average(average: Tensor, value: Tensor, decay: float) -> Tensor:
    """Update a moving average in place; an average that is all zero becomes the value."""
    import torch

    # Decided on the device: a Python `if` would wait for it.
    started = average.abs().sum() > 0
    return average.copy_(torch.where(started, decay * average + (1 - decay) * value, value))


def align_distribution(probabilities: Tensor, predicted: Tensor, target: Tensor) -> Tensor:
    """Scale probabilities [n, C] by target over predicted class frequencies, and normalize."""
    scaled = probabilities * target / predicted.clamp_min(1e-6)
    return scaled / scaled.sum(dim=1, keepdim=True)


def align_to_uniform(probabilities: Tensor, average: Tensor, decay: float, ranks: Ranks) -> Tensor:
    """Update the running mean [C] of predictions [n, C]; return them aligned to uniform."""
    import torch

    predicted = update_average(average, ranks.mean(probabilities.mean(dim=0)), decay)
    uniform = torch.full_like(predicted, 1 / len(predicted))
    return align_distribution(probabilities, predicted, uniform)


def alignment_state(config: AlignmentSettings, info: DatasetInfo) -> State:
    """Start the running mean of predictions without any, if predictions are aligned."""
    return (
        {"predicted": info.labeled_shares.new_zeros(info.num_classes)} if config.alignment else {}
    )


def class_frequencies(labels: Tensor, classes: int, weight: Tensor) -> Tensor:
    """Return the weighted number of images of each class over the number of all images [C]."""
    import torch.nn.functional as F

    return (F.one_hot(labels, classes).to(weight.dtype).t() * weight).mean(dim=1)


def normalized_ratio(values: Tensor, histogram: Tensor) -> Tensor:
    """Divide by the histogram where it is not 0, else give 0; then scale to the sum 1."""
    import torch

    filled = histogram > 0
    ratio = torch.where(filled, values / torch.where(filled, histogram, 1), 0)
    return ratio / ratio.sum().clamp_min(1e-12)


def input_gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the gradient by the argument alone; parameters get none."""
    import torch

    if torch.compiler.is_compiling():  # torch.compile traces the functional form only
        functional: Tensor = torch.func.grad(function)(at)
        return functional.detach()  # no second derivative by the parameters
    leaf = at.detach().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def loss_metrics(**terms: Tensor) -> dict[str, Tensor]:
    """Return the terms of a loss as metrics, without their graph."""
    return {f"loss/{name}": term.detach() for name, term in terms.items()}


def step_output(
    loss: Tensor,
    terms: dict[str, Tensor],
    pseudo_label: Tensor,
    trusted: Tensor,
    tables: dict[str, Tensor] | None = None,
) -> StepOutput:
    """Return the output of a step that trusts some pseudo-labels; `terms` are logged."""
    return StepOutput(
        loss=loss,
        metrics={**loss_metrics(**terms), "trusted": trusted.mean()},
        tables=tables or {},
        pseudo_label=pseudo_label,
        trusted=trusted,
    )
