"""The networks: sizes, forms, heads, layout, and names that are not there."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fastssl.errors import ConfigError
from fastssl.models import MODELS, build

PARAMETERS = [
    ("wrn-28-2", 10, 1_469_642),
    ("wrn-28-8", 100, 23_409_092),
    ("wrn-37-2", 10, 5_933_770),
    ("resnet50", 1000, 25_557_032),
]


@pytest.mark.parametrize(("name", "classes", "count"), PARAMETERS)
def test_has_the_published_number_of_parameters(name, classes, count):
    with torch.device("meta"):
        model = build(name, classes=classes)
    assert sum(p.numel() for p in model.parameters()) == count
    assert name in MODELS


def test_listing_models_needs_no_torch():
    code = "import sys, fastssl.models; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def without_gradient(variant):
    torch.manual_seed(0)
    model = build("wrn-28-2", classes=10, variant=variant)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    return [name for name, p in model.named_parameters() if p.grad is None]


def test_the_reference_has_192_dead_parameters_and_google_none():
    dead = without_gradient("torchssl")
    sizes = dict(build("wrn-28-2", classes=10).named_parameters())
    assert dead and all(".bn1." in name for name in dead)
    assert sum(sizes[name].numel() for name in dead) == 192
    assert without_gradient("google") == []


def reference_block(block, x, first, variant):
    """A block as the published code computes it."""
    activated = nn.functional.leaky_relu(block.bn1(x), 0.1)
    if block.shortcut is None:
        inner, side = activated, x
    elif first:
        inner, side = activated, block.shortcut(activated)
    else:
        inner = activated if variant == "google" else x
        side = block.shortcut(x)
    hidden = nn.functional.leaky_relu(block.bn2(block.conv1(inner)), 0.1)
    return side + block.conv2(hidden)


@pytest.mark.parametrize("variant", ["torchssl", "google"])
@pytest.mark.parametrize("name", ["wrn-16-2", "wrn-37-2"])
def test_computes_what_the_published_code_does(name, variant):
    torch.manual_seed(0)
    model = build(name, classes=7, variant=variant).eval()
    x = torch.randn(2, 3, 16, 16)
    out = model.stem(x)
    sizes = []
    for number, block in enumerate(model.blocks):
        out = reference_block(block, out, number == 0, variant)
        sizes.append((out.shape[1], out.shape[2]))
    features = nn.functional.leaky_relu(model.bn(out), 0.1).mean((2, 3))
    torch.testing.assert_close(model(x), model.classifier(features))
    stages = {"wrn-16-2": [(32, 16), (64, 8), (128, 4)]}
    stages["wrn-37-2"] = [(32, 8), (64, 4), (128, 2), (256, 1)]
    assert list(dict.fromkeys(sizes)) == stages[name]


def test_batchnorm_and_initial_weights():
    torch.manual_seed(0)
    model = build("wrn-28-2", classes=10)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 1e-3)}
    assert {m.momentum for m in build("wrn-10-1", 10, bn_momentum=0.2).modules()
            if isinstance(m, nn.BatchNorm2d)} == {0.2}  # fmt: skip
    conv = model.blocks[-1].conv2  # 128 channels: fan_out 128 * 9
    assert conv.weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert not model.classifier.bias.any()
    assert model.classifier.weight.std().item() == pytest.approx((2 / 138) ** 0.5, rel=0.1)


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet50"])
def test_heads_and_features(name):
    model = build(name, classes=3, heads={"rotation": 4}).eval()
    x = torch.randn(2, 3, 32, 32)
    out = model(x, heads=True)
    assert {key: tuple(value.shape[1:]) for key, value in out.items()} == {
        "logits": (3,),
        "features": (64 if name == "wrn-10-1" else 2048,),
        "rotation": (4,),
    }
    torch.testing.assert_close(out["logits"], model(x))


def test_activations_stay_channels_last():
    model = build("wrn-16-2", classes=3)
    wrong = []

    def look(module, inputs, output):
        if output.ndim == 4 and output.shape[2] > 1:
            ok = output.is_contiguous(memory_format=torch.channels_last)
            wrong.extend([] if ok else [type(module).__name__])

    for module in model.modules():
        module.register_forward_hook(look)
    model(torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last))
    assert not wrong


@pytest.mark.parametrize("name", ["wrn-27-2", "wrn-28-0", "wrn-4-1", "vgg", "wrn-28"])
def test_a_name_that_is_not_there(name):
    with pytest.raises(ConfigError):
        build(name, classes=10)


def test_a_variant_that_is_not_there():
    with pytest.raises(ConfigError, match="variant"):
        build("wrn-10-1", classes=10, variant="tensorflow")
