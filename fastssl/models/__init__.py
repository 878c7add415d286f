"""Networks by name. torch is imported when a network is built, not when they are listed.

A network maps images [n, 3, H, W] to logits [n, C]. Called with `heads=True` it returns a dict:
`logits`, `features` (pooled, [n, F]), and one entry for each extra head.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastssl import plugins
from fastssl.models import backbones
from pipelines.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import nn

MODELS: dict[str, str] = {
    "fast-24": "small network for runs of minutes, 0.6 M parameters; any other fast-W with W "
    "divisible by 8 is also built",
    "resnet50": "ResNet-50 as torchvision's (v1.5), for ImageNet",
    "wrn-28-2": "Wide ResNet of CIFAR-10 and SVHN; any other wrn-D-K with D = 6n + 4 is also built",
    "wrn-28-8": "Wide ResNet of CIFAR-100",
    "wrn-37-2": "Wide ResNet of STL-10: four stages, each of stride 2",
}
"""Networks of our own, with a sentence each; the larger ones are of the published results."""

FAMILIES = {
    "resnet50": "resnet50",
    "wrn": r"wrn-(\d{1,4})-(\d{1,4})",
    "fast": r"fast-(\d{1,4})",
}
"""Our own networks: the form of their names by family."""

VARIANTS = ("torchssl", "google")
"""Forms of the Wide ResNet; see wide_resnet.py."""


def build(
    name: str,
    classes: int,
    variant: str = "torchssl",
    heads: Mapping[str, int] | None = None,
    bn_momentum: float | None = None,
    drop_path: float = 0.0,
    size: tuple[int, int] | None = None,
) -> nn.Module:
    """Build the network `name` in channels-last format; without `bn_momentum` it keeps its own.

    `drop_path` is the rate of stochastic depth; networks of our own have none. `size` is the
    height and width of the images: some networks of timm and torchvision are built for one size.
    """
    if variant not in VARIANTS:
        raise ConfigError(
            f"no model variant is named {variant!r}", f"use one of: {', '.join(VARIANTS)}"
        )
    import torch

    model = _build(name, classes, variant, dict(heads or {}), drop_path, size)
    if bn_momentum is not None:
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = bn_momentum
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def check(name: str) -> None:
    """Raise if there is no network of this name."""
    reference = backbones.parse(name)
    if reference is not None:
        backbones.check(reference)
    elif not plugins.is_plugin("model", name):
        parse(name)


def family(name: str) -> str | None:
    """Return the family of a network of our own; None for any other network."""
    return next((one for one, form in FAMILIES.items() if re.fullmatch(form, name)), None)


def may_draw(name: str) -> bool:
    """Return True if a network may draw random numbers in a step: any but those of our own."""
    return family(name) is None


def own_inputs(name: str) -> backbones.Inputs | None:
    """Return what the published weights of a network expect; None for networks without any."""
    reference = backbones.parse(name)
    return None if reference is None else backbones.own_inputs(reference)


def parse(name: str) -> tuple[int, ...]:
    """Return stages, blocks per stage and width of a `wrn-D-K`, and the width of a `fast-W`."""
    kind = family(name)
    if kind is None:
        raise ConfigError(
            f"no model is named {name!r}",
            f"use one of: {', '.join(MODELS)}, a wrn-D-K, a fast-W, timm:NAME or torchvision:NAME",
        )
    found = re.fullmatch(FAMILIES[kind], name)
    numbers = tuple(int(one) for one in found.groups()) if found else ()
    if kind == "wrn":
        return _wide_resnet(name, *numbers)
    if kind == "fast" and (numbers[0] < 8 or numbers[0] % 8):
        raise ConfigError(
            f"{name!r} is not a possible network",
            "use a width that divides by 8: fast-8, fast-16, fast-24, fast-32, ...",
        )
    return numbers


def _wide_resnet(name: str, depth: int, widen: int) -> tuple[int, int, int]:
    # 37 = 4 stages x 4 blocks x 2 convolutions + 5, the one depth that is not 6n + 4
    stages, blocks = (4, 4) if depth == 37 else (3, (depth - 4) // 6)
    if widen < 1 or blocks < 1 or (depth != 37 and depth != 6 * blocks + 4):
        raise ConfigError(
            f"{name!r} is not a possible Wide ResNet",
            "use a depth of 6n + 4 (10, 16, 22, 28, 34, 40, ...) or 37, and a width of at least 1",
        )
    return stages, blocks, widen


def _build(
    name: str,
    classes: int,
    variant: str,
    heads: dict[str, int],
    drop_path: float = 0.0,
    size: tuple[int, int] | None = None,
) -> nn.Module:
    reference = backbones.parse(name)
    if reference is not None:
        return backbones.build(reference, classes, heads, drop_path, size)
    try:
        shape = parse(name)
    except ConfigError:
        if not plugins.is_plugin("model", name):
            raise
        return _build_plugin(name, classes, heads, drop_path)
    if drop_path:
        raise ConfigError(f"{name} has no stochastic depth", "type drop_path=0, or use timm:NAME")
    kind = family(name)
    if kind == "resnet50":
        from fastssl.models.resnet import ResNet50

        return ResNet50(classes, heads)
    if kind == "fast":
        from fastssl.models.fast import Fast

        return Fast(classes, shape[0], heads, size)
    from fastssl.models.wide_resnet import WideResNet

    return WideResNet(classes, shape[0], shape[1], shape[2], variant, heads)


def _build_plugin(name: str, classes: int, heads: dict[str, int], drop_path: float) -> nn.Module:
    """Build a network by a function of a user's file or an installed package."""
    from torch import nn

    build: Callable[..., Any] = plugins.load("model", name)
    parameters = inspect.signature(build).parameters.values()
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    takes = {one.name for one in parameters} | ({"heads"} if takes_all else set())
    if heads and "heads" not in takes:
        raise ConfigError(
            f"the algorithm needs the extra heads {', '.join(heads)}, but {name} takes none",
            "give its function an argument `heads`, or choose another algorithm",
        )
    if drop_path and "drop_path" not in takes:
        raise ConfigError(
            f"{name} takes no drop_path", "give its function an argument `drop_path`, or leave it"
        )
    given = {"heads": heads, "drop_path": drop_path}
    try:
        model = build(classes, **{key: given[key] for key in given if key in takes})
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{name} failed with {classes} classes: {type(error).__name__}: {error}",
            "let it take the number of classes and return a torch.nn.Module",
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name} returned a {type(model).__name__}", "return a torch.nn.Module")
    return model
