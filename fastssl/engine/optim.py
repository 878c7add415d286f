"""Optimizers, their groups and learning rates, EMA, the fp16 scale, the non-finite check.

The default is the paper's: SGD with Nesterov momentum, cosine of 7/16, no decay of 1-D parameters.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastssl.config.schema import RunConfig
from fastssl.engine.muon import Muon
from fastssl.errors import ConfigError
from fastssl.models.classifier import classifier_of, head_names
from fastssl.models.depth import layer_scales, names_without_decay

GROWTH_EVERY = 2000  # finite steps in a row after which the scale is doubled
START = 2.0**16


def build(model: nn.Module, config: RunConfig, precision: str = "fp32") -> torch.optim.Optimizer:
    """Build the optimizer of the parameters that are trained; `precision` is the one in use.

    Every kind reads `found_inf` on the device and changes nothing unless it is 0: SGD and AdamW
    are fused for it.
    """
    groups = parameter_groups(model, config)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=True)
    momentum: dict[str, Any] = {"momentum": config.momentum, "nesterov": config.nesterov}
    if config.optimizer == "muon":
        if precision == "fp16":  # chosen by `auto`: the configuration refuses it by name
            raise ConfigError(
                "optimizer=muon does not go with fp16, which precision=auto chose on this GPU",
                "type precision=fp32, or optimizer=sgd",
            )
        return Muon(groups, config.lr, **momentum, rescale=config.muon_rescale)
    optimizer = torch.optim.SGD(groups, lr=config.lr, **momentum, fused=True)
    if config.momentum:
        # A first step that is skipped (fp16 overflow) would leave these unwritten.
        for group in groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def parameter_groups(model: nn.Module, config: RunConfig) -> list[dict[str, Any]]:
    """Return groups by learning rate and weight decay; `lr_scale` is relative to config.lr.

    1-D parameters go without decay, and so do those that a model of timm names for it. There are
    always two groups for each rate, and a third for the matrices of Muon, even if one is empty:
    checkpoints refer to their order.
    """
    scales = dict.fromkeys((name for name, _ in model.named_parameters()), 1.0)
    if config.layer_decay < 1:
        scales |= layer_scales(model, config.layer_decay)
    if config.head_lr is not None:
        classifier_of(model, "head_lr")
        scales |= {n: scales[n] * config.head_lr / config.lr for n in head_names(model)}
    without_decay = names_without_decay(model)
    matrices = matrix_names(model) if config.optimizer == "muon" else set()
    groups: dict[float, list[dict[str, Any]]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        found = groups.setdefault(scales[name], _empty_groups(config, scales[name]))
        number = 2 if name in matrices else int(parameter.ndim <= 1 or name in without_decay)
        found[number]["params"].append(parameter)
    return [group for some in groups.values() for group in some]


def _empty_groups(config: RunConfig, scale: float) -> list[dict[str, Any]]:
    """Return the groups of one rate: with weight decay, without, and the matrices of Muon."""
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": decay, "lr_scale": scale}
        for decay in (config.weight_decay, 0.0)
    ]
    if config.optimizer == "muon":
        muon = {"matrices": True, "momentum": config.muon_momentum}
        groups.append({"params": [], "lr_scale": scale * config.muon_lr / config.lr, **muon})
    return groups


def matrix_names(model: nn.Module) -> set[str]:
    """Return the names of the weights of convolutions and of hidden linear layers.

    The kind of the layer decides, not the number of dimensions: tables such as position
    embeddings have two as well. The classifier and the extra heads are not among them.
    """
    classifier_of(model, "optimizer=muon")
    layers = [name for name, one in model.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    return {f"{layer}.weight" for layer in layers} - head_names(model)


def learning_rate(config: RunConfig, step: int) -> float:
    """Return the learning rate of step k of K, with a warm-up of w steps.

    lr · k/w before step w, then with the share s = (k - w)/(K - w) of the rest
    lr · cos(7π/16 · s), or lr · (1 - s) if `schedule` is linear.
    """
    if step < config.warmup:
        return config.lr * step / config.warmup
    step, steps = step - config.warmup, config.steps - config.warmup
    if config.schedule == "linear":
        return config.lr * (1 - step / steps)
    return config.lr * math.cos(7 * math.pi / 16 * step / steps)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group; a checkpoint of version 0.1.0 has no `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def reseed(seed: int, step: int, rank: int) -> None:
    """Seed torch's global generator for one step, so that a resumed run draws the same numbers.

    Networks of others draw from it in drop_path and dropout; nothing else in a step does.
    """
    mixed = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))


class Ema:
    """An exponential moving average of a model's parameters, held in a second model.

    Parameters are averaged; BatchNorm buffers are copied from the student.
    """

    def __init__(self, student: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        pairs = zip(self.model.parameters(), student.parameters(), strict=True)
        trained = [(own, theirs.detach()) for own, theirs in pairs if theirs.requires_grad]
        self._averages: list[Tensor] = [own for own, _ in trained]
        self._weights = [theirs for _, theirs in trained]
        # Pairs of lists, one for each type: a list of mixed types would be copied one by one.
        self._buffers: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, theirs in zip(self.model.buffers(), student.buffers(), strict=True):
            pair = self._buffers.setdefault(own.dtype, ([], []))
            pair[0].append(own)
            pair[1].append(theirs)

    @torch.no_grad()
    def update(self, moves: Tensor) -> None:
        """Move towards the student by 1 - decay, or not at all if the scalar `moves` is 0."""
        gaps = torch._foreach_sub(self._weights, self._averages)
        torch._foreach_mul_(gaps, moves.to(self._averages[0].dtype) * (1 - self.decay))
        torch._foreach_add_(self._averages, gaps)
        self.copy_buffers()

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the student's BatchNorm statistics.

        This is done in every step, and after an evaluation, so that a step function that runs the
        teacher in eval mode does not depend on when a run is evaluated or saved.
        """
        for own, theirs in self._buffers.values():
            torch._foreach_copy_(own, theirs)


class Scaler:
    """The fp16 loss scale, kept on the device; it is halved after an overflow.

    torch.amp.GradScaler does not sync with a fused optimizer either. It is not used because its
    step() sets `optimizer.found_inf`, which here also masks every update after a non-finite loss,
    and because it does not count the skipped steps. The two kernels below are the ones it calls.
    """

    def __init__(self, model: nn.Module, device: torch.device, enabled: bool) -> None:
        self.enabled = enabled
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.state = {
            "scale": torch.full((), START, device=device),
            "good": torch.zeros((), dtype=torch.int32, device=device),
            "skipped": torch.zeros((), dtype=torch.int64, device=device),
        }

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss to call backward on."""
        return loss * self.state["scale"] if self.enabled else loss

    @torch.no_grad()
    def unscale(self) -> Tensor | None:
        """Divide the gradients in place; return 1 if one overflowed, else 0; None without fp16."""
        if not self.enabled:
            return None
        overflow = torch.zeros_like(self.state["scale"])
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        inverse = self.state["scale"].reciprocal()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)
        return overflow

    @torch.no_grad()
    def update(self, overflow: Tensor | None) -> None:
        """Halve the scale after an overflow, double it after 2,000 finite steps in a row."""
        if overflow is None:
            return
        scale, good = self.state["scale"], self.state["good"]
        torch._amp_update_scale_(scale, good, overflow, 2.0, 0.5, GROWTH_EVERY)
        self.state["skipped"].add_(overflow > 0)


class NonFiniteCheck:
    """Records the first step whose loss or gradient was not finite.

    The flag lives on the device, so a step does not wait for it. The loop reads it at log steps,
    evaluations and checkpoints, where it waits for the device anyway.

    From that step on `update` returns 0, which masks the updates of weights, momenta and EMA.
    BatchNorm statistics and the algorithm's state are not protected: the loop raises
    DivergedError before anything is logged, evaluated or saved.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.alive = torch.ones((), device=device)  # 1, then 0 from the first bad step on
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    @torch.no_grad()
    def gradients_are_finite(self) -> Tensor:
        """Return a boolean scalar on the device."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # A norm for each tensor instead of a test for each element: one fused launch.
        return torch.isfinite(torch.stack(torch._foreach_norm(gradients)).sum())

    @torch.no_grad()
    def update(self, finite: Tensor, step: int) -> Tensor:
        """Record `step` if it is the first that is not finite; return 1 while all were, else 0."""
        first = (self.alive > 0) & ~finite
        self.bad_step.copy_(torch.where(first, step, self.bad_step))
        self.alive.mul_(finite)
        return self.alive
