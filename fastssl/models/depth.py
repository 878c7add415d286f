"""How deep each parameter of a timm model lies, by the groups that the model declares itself."""

from __future__ import annotations

from fnmatch import fnmatch
from itertools import chain
from typing import Any

from torch import nn

from fastssl.models.classifier import head_names
from pipelines.errors import ConfigError


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Return decay ** (layers above it) for each parameter by name; 1 for the classifier.

    The layers are those of timm's `param_groups_layer_decay`.
    """
    prefix, body = _declaring(model, "group_matcher")
    if body is None:
        raise ConfigError(
            f"layer_decay={decay} needs a model that declares its layers, and "
            f"{type(model).__name__} does not",
            "use a model of timm (model=timm:NAME), or layer_decay=1",
        )
    from timm.models._manipulate import group_with_matcher

    names = [name for name, _ in body.named_parameters()]
    # The classifier is the last layer, whether the model of timm holds it or we do: a name that
    # no pattern matches comes after all others.
    matcher = body.group_matcher(coarse=False)
    layers = group_with_matcher(((n, None) for n in chain(names, ["~"])), matcher, reverse=True)
    last = max(layers.values())
    scales = {f"{prefix}{name}": decay ** (last - layers[name]) for name in names}
    return {**scales, **dict.fromkeys(head_names(model), 1.0)}


def names_without_decay(model: nn.Module) -> set[str]:
    """Return the parameters that a model of timm wants without weight decay, such as pos_embed."""
    prefix, body = _declaring(model, "no_weight_decay")
    if body is None:
        return set()
    patterns = [f"{prefix}{pattern}" for pattern in body.no_weight_decay()]
    names = [name for name, _ in model.named_parameters()]
    return {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}


def _declaring(model: nn.Module, method: str) -> tuple[str, Any]:
    """Return the network that has a method of timm's, and the prefix of its names; else None."""
    for prefix, module in (("", model), ("body.", getattr(model, "body", None))):
        if hasattr(module, method):
            return prefix, module
    return "", None
