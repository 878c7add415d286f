"""Networks of timm and torchvision: `timm:NAME` and `torchvision:NAME`.

The library builds the body. Its classifier is removed; ours, and the extra heads of an algorithm,
take the pooled features. Arguments of the library may follow the name:
`timm:vit_small_patch16_224:patch_size=2,depth=6`.

Neither library is imported before such a name is used.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.errors import ConfigError, ResourceError
from pipelines.extras import import_problem

if TYPE_CHECKING:
    from torch import nn

LIBRARIES = ("timm", "torchvision")
# Arguments that name files or addresses of weights. A name comes from the config.yaml of a run,
# perhaps someone else's; weights come from `pretrained` alone.
REFUSED = ("checkpoint_path", "cache_dir", "pretrained", "weights", "num_classes")
SIDES = ("img_size", "image_size")  # arguments for the side of an input
PREFIXES = [
    (
        "timm:NAME",
        "any classifier of timm (pip install 'fastssl[timm]'); pretrained=true downloads weights; "
        "timm:NAME:KEY=VALUE,... passes arguments",
    ),
    ("torchvision:NAME", "any classifier of torchvision that ends in a Linear layer"),
]
CHOICES: dict[str, tuple[str, float, float]] = {
    "timm:tf_efficientnet_lite0": ("EfficientNet-Lite0, quick on a CPU", 4.65, 0.39),
    "timm:mobilenetv3_large_100": ("MobileNetV3, the fewest operations", 5.48, 0.22),
    "timm:efficientnet_b0": ("EfficientNet-B0", 5.29, 0.39),
    "timm:convnext_atto": ("the smallest ConvNeXt", 3.70, 0.55),
    "timm:convnext_tiny": ("ConvNeXt-T", 28.59, 4.46),
    "timm:resnet18": ("ResNet-18", 11.69, 1.81),
    "timm:resnet50": ("ResNet-50", 25.56, 4.09),
    "timm:swin_tiny_patch4_window7_224": ("Swin-T", 28.29, 4.49),
    "timm:vit_tiny_patch16_224": ("ViT-Ti/16", 5.72, 1.25),
    "timm:vit_small_patch16_224": ("ViT-S/16", 22.05, 4.60),
    "timm:vit_small_patch14_dinov2": ("ViT-S/14 of DINOv2, at 518 pixels", 22.06, 46.70),
    "timm:vit_base_patch16_224": ("ViT-B/16", 86.57, 17.56),
    "torchvision:efficientnet_v2_s": ("EfficientNetV2-S, at 384 pixels, bilinear", 21.46, 8.37),
}
"""Good choices: a sentence, millions of parameters, and GFLOPs (multiply-adds) of an image of the
model's own size, both with its classifier of ImageNet. The sentence names an interpolation that is
not bicubic, the default of `convert`."""


class Reference(NamedTuple):
    """A name such as timm:resnet18, taken apart."""

    library: str
    name: str
    arguments: dict[str, Any]


class Inputs(NamedTuple):
    """What the published weights of a network expect of an image."""

    size: tuple[int, int]  # height and width
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str  # bilinear or bicubic


def parse(text: str) -> Reference | None:
    """Return the parts of a name with the prefix of a library; None for any other name."""
    library, colon, rest = text.partition(":")
    if not colon or library not in LIBRARIES:
        return None
    name, _, given = rest.partition(":")
    try:  # as the arguments of a call, whose values are literals or, for a string, a bare name
        call = ast.parse(f"f({given})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("expected KEY=VALUE")
        arguments = {str(one.arg): _value(one.value) for one in call.keywords}
        if any(key.startswith(REFUSED) for key in arguments):
            raise ValueError("weights and classes have settings of their own")
        sides = [arguments[key] for key in SIDES if key in arguments]
        if not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError("expected a number of pixels")
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ConfigError(
            f"{given[:80]!r} is no list of arguments for {library}:{name}",
            f"type {library}:{name}:KEY=VALUE,KEY=VALUE",
        ) from error
    return Reference(library, name, arguments)


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def check(reference: Reference) -> None:
    """Raise if the library is missing or has no network of this name."""
    library, name, _ = reference
    problem = import_problem(library)
    if problem:
        raise ResourceError(
            f"model={library}:{name} needs {library}, which {problem}",
            "pip install 'fastssl[timm]'",
        )
    names = _names(reference)
    if name in names:
        return
    near = get_close_matches(name[:80], names, n=3, cutoff=0.5)
    raise ConfigError(
        f"{library} has no classifier named {name[:80]!r}",
        f"type one of: {', '.join(f'{library}:{one}' for one in near or names[:3])}",
    )


def _names(reference: Reference) -> list[str]:
    """Return the names that a library knows; of timm also those with the tag of weights."""
    if reference.library == "timm":
        import timm

        tagged = "." in reference.name
        return timm.list_pretrained() if tagged else timm.list_models()  # type: ignore[no-any-return]
    from torchvision import models

    return models.list_models(module=models)  # type: ignore[no-any-return]


def own_inputs(reference: Reference) -> Inputs:
    """Return what the library states about its weights for a network."""
    library, name, arguments = reference
    if library == "timm":
        from timm.models import get_pretrained_cfg

        found = get_pretrained_cfg(name)
        side = arguments.get("img_size", found.input_size[-1])
        return Inputs((side, side), tuple(found.mean), tuple(found.std), found.interpolation)
    from torchvision.models import get_model_weights

    preset = get_model_weights(name).DEFAULT.transforms()
    side = arguments.get("image_size", preset.crop_size[0])
    resized = preset.interpolation.value
    return Inputs((side, side), tuple(preset.mean), tuple(preset.std), resized)


def body(
    reference: Reference, size: tuple[int, int], drop_path: float = 0.0, *, pretrained: bool = False
) -> Any:
    """Build a network without its classifier; with `pretrained` the library downloads weights."""
    make = _timm_body if reference.library == "timm" else _torchvision_body
    try:
        return make(reference, size, drop_path, pretrained)
    except MemoryError:
        raise
    except Exception as error:  # what a network raises for a wrong argument differs
        if pretrained and not isinstance(error, TypeError):
            raise  # of the download
        raise ConfigError(
            f"{reference.library}:{reference.name} cannot be built: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}",
            "leave drop_path and the arguments out that it does not take",
        ) from error


def _timm_body(ref: Reference, size: tuple[int, int], drop_path: float, pretrained: bool) -> Any:
    import timm
    from timm.models import get_pretrained_cfg

    given = dict(ref.arguments)
    if get_pretrained_cfg(ref.name).fixed_input_size:
        given["img_size"] = size
    if drop_path:
        given["drop_path_rate"] = drop_path
    try:
        return timm.create_model(ref.name, pretrained=pretrained, num_classes=0, **given)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        del given["img_size"]
        return timm.create_model(ref.name, pretrained=pretrained, num_classes=0, **given)


def _torchvision_body(
    ref: Reference, size: tuple[int, int], drop_path: float, pretrained: bool
) -> Any:
    from torch import nn
    from torchvision.models import get_model
    from torchvision.ops import StochasticDepth

    made = get_model(ref.name, weights="DEFAULT" if pretrained else None, **ref.arguments)
    if hasattr(made, "aux_logits"):  # GoogLeNet and Inception return more than logits in training
        made.aux_logits = False
        for name in {"aux1", "aux2", "AuxLogits"} & dict(made.named_children()).keys():
            setattr(made, name, None)
        made.transform_input = True  # their weights expect it; torchvision sets it only with them
    # The rates of a network rise from block to block; the largest becomes drop_path.
    depths = [one for one in made.modules() if isinstance(one, StochasticDepth)]
    if drop_path and not depths:
        raise TypeError("it has no stochastic depth")
    largest = max((one.p for one in depths), default=0) or 1.0
    for one in depths:
        one.p *= drop_path / largest
    linear = [name for name, one in made.named_modules() if isinstance(one, nn.Linear)]
    if not linear:
        raise TypeError("its classifier is no Linear layer")
    made.set_submodule(linear[-1], nn.Identity())
    return made


def build(
    reference: Reference,
    classes: int,
    heads: Mapping[str, int],
    drop_path: float = 0.0,
    size: tuple[int, int] | None = None,
) -> nn.Module:
    """Build the network for images of `size`; without it for those of its own size."""
    import torch
    from torch import nn

    from fastssl.models.classifier import WithClassifier

    check(reference)
    size = size or own_inputs(reference).size
    made = body(reference, size, drop_path)
    # Some networks have dropout by default; here drop_path alone says what is dropped.
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif not drop_path and hasattr(module, "drop_prob"):  # timm's DropPath
            module.drop_prob = 0.0
    try:
        with torch.no_grad():
            width = made.eval()(torch.zeros(1, 3, *size)).flatten(1).shape[1]
    except Exception as error:  # what a network raises for a wrong size differs
        own = own_inputs(reference).size[0]
        raise ConfigError(
            f"{reference.library}:{reference.name} takes no images of {size[0]}x{size[1]} pixels: "
            f"{' '.join(str(error).split())[:200]}",
            f"type image_size={own}, its own size, or another one that it takes",
        ) from error
    return WithClassifier(made.train(), nn.Linear(width, classes), heads)
