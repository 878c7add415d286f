"""The linear classifier of a network: its logit scale, its initialization, and what is frozen.

A network of ours has the attribute `classifier`, a Linear layer on the pooled features. The extra
heads of an algorithm, in the attribute `heads`, belong to it: they are trained where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipelines.errors import ConfigError


class WithClassifier(nn.Module):
    """A body that returns pooled features, our classifier, and the extra heads of an algorithm."""

    def __init__(self, body: nn.Module, classifier: nn.Linear, heads: Mapping[str, int]) -> None:
        super().__init__()
        self.body = body
        self.classifier = classifier
        size = classifier.in_features
        self.heads = nn.ModuleDict({name: nn.Linear(size, out) for name, out in heads.items()})

    def forward(self, x: Tensor, heads: bool = False) -> Tensor | dict[str, Tensor]:
        """Return logits [n, C], or with `heads` a dict of all outputs."""
        features = torch.flatten(self.body(x), 1)
        logits: Tensor = self.classifier(features)
        if not heads:
            return logits
        extra = {name: head(features) for name, head in self.heads.items()}
        return {"logits": logits, "features": features, **extra}


def classifier_of(model: nn.Module, setting: str) -> nn.Linear:
    """Return the classifier of a network; `setting` is what the error says that needs it."""
    found = getattr(model, "classifier", None)
    if isinstance(found, nn.Linear):
        return found
    raise ConfigError(
        f"{setting} needs the classifier, but {type(model).__name__} has no Linear layer of this "
        "name",
        f"name its last layer `classifier`, or leave {setting.split('=')[0]} out",
    )


def head_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters of the classifier and of the extra heads."""
    names = [name for name, _ in model.named_parameters()]
    return {name for name in names if name.split(".")[0] in ("classifier", "heads")}


def features_of(model: Any, images: Tensor) -> Tensor:
    """Return the pooled features of a network, [n, F]."""
    try:
        found: Tensor = model(images, heads=True)["features"]
    except TypeError as error:
        raise ConfigError(
            f"{type(model).__name__} has no features: its forward takes no `heads`",
            "let forward(x, heads=True) return a dict with `logits` and `features`",
        ) from error
    return found


def divide_logits(model: nn.Module, temperature: float) -> None:
    """Let the network return logits / temperature, wherever it is called.

    The hook belongs to the classifier, so that steps, evaluation, prediction and exported programs
    see one and the same logits, and weights and their names stay as they are.
    """
    if temperature != 1:
        classifier = classifier_of(model, f"temperature={temperature}")
        classifier.register_forward_hook(_Division(temperature))


class _Division:
    """A hook that divides the output; an object, not a closure, so that deepcopy copies it."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / self.temperature


def freeze(model: nn.Module, what: str) -> None:
    """Fix parts of a network: `backbone`, all but the classifier, or `batchnorm`.

    In both cases BatchNorm normalizes by its running statistics, which then never change.
    """
    if what == "none":
        return
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.requires_grad_(False)
            module.__class__ = _frozen(type(module))
    if what == "backbone":
        classifier_of(model, "freeze=backbone")
        trained = head_names(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)


def _frozen(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return a BatchNorm class that stays in eval mode, whatever `train` or a step sets.

    A class of its own for each kind, because those of timm also apply an activation.
    """
    stays = property(lambda self: False, lambda self, value: None)
    return type(f"Frozen{kind.__name__}", (kind,), {"training": stays})


@torch.no_grad()
def set_class_means(classifier: nn.Linear, sums: Tensor, counts: Tensor, squares: Tensor) -> None:
    """Set weights and bias so that the logits are cosines to the class means.

    With the class means m_c, their mean m over the classes, and r the root mean square of
    |f - m| over the labeled images:

        logit_c = (f - m) / r . (m_c - m) / |m_c - m|

    which is the cosine between f - m and m_c - m for a feature at the distance r from m. A class
    without a labeled image has the logit 0. `sums` [C, F] are the features added by class,
    `counts` [C] the images, and `squares` the sum of |f|^2 over all images.
    """
    found = counts > 0
    means = sums / counts.clamp_min(1)[:, None]
    center = means[found].mean(dim=0)
    apart = torch.where(found[:, None], means - center, 0)
    directions = apart / apart.norm(dim=1, keepdim=True).clamp_min(1e-12)
    total = counts.sum()
    # The mean of |f - m|^2, from sums alone: ranks add them up.
    spread = squares / total - 2 * (sums.sum(dim=0) / total) @ center + center @ center
    weight = directions / spread.clamp_min(1e-12).sqrt()
    classifier.weight.copy_(weight)
    if classifier.bias is not None:
        classifier.bias.copy_(-weight @ center)
