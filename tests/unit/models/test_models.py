"""The networks: sizes, forms, heads, layout, and names that are not there."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fastssl.errors import ConfigError
from fastssl.models import MODELS, build, family, may_draw

PARAMETERS = [
    ("wrn-28-2", 10, 1_469_642),
    ("wrn-28-8", 100, 23_409_092),
    ("wrn-37-2", 10, 5_933_770),
    ("resnet50", 1000, 25_557_032),
    ("fast-24", 10, 627_930),
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


def reference_fast(model, x):
    """Compute the logits of a `fast-W` as its description writes them."""
    rest = list(model.parameters())

    def convolved(x, padding, pooled):
        weight, scale, shift = rest.pop(0), rest.pop(0), rest.pop(0)
        x = nn.functional.conv2d(x, weight, padding=padding)
        x = nn.functional.max_pool2d(x, 2) if pooled else x
        x = (x - x.mean((0, 2, 3), True)) / (x.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt()
        x = x * scale[:, None, None] + shift[:, None, None]
        return x * x.sigmoid()

    x = convolved(x, 0, False)
    sizes = [tuple(x.shape[1:3])]
    for _ in range(3):
        x = convolved(convolved(x, 1, True), 1, False)
        sizes.append(tuple(x.shape[1:3]))
    weight, bias = rest
    return x.mean((2, 3)) @ weight.T + bias, sizes


@pytest.mark.parametrize(
    ("width", "widths"), [(24, (24, 32, 96, 192)), (8, (8, 8, 32, 64)), (40, (40, 56, 160, 320))]
)
def test_a_fast_network_computes_what_it_describes(width, widths):
    torch.manual_seed(0)
    model = build(f"fast-{width}", classes=7)
    x = torch.randn(4, 3, 32, 32)
    logits, sizes = reference_fast(model, x)
    assert sizes == list(zip(widths, (31, 15, 7, 3), strict=True))
    torch.testing.assert_close(model.train()(x), logits, rtol=1e-4, atol=1e-5)
    convolution = model.body[3][4]  # the last: Kaiming's variance is 2 / fan_in
    expected = (2 / convolution.weight[0].numel()) ** 0.5
    assert convolution.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert not model.classifier.bias.any()


def test_a_fast_network_refuses_images_that_its_blocks_pool_to_nothing():
    images = torch.randn(2, 3, 9, 9)
    assert build("fast-8", classes=3, size=(9, 9))(images).shape == (2, 3)
    with pytest.raises(ConfigError, match="at least 9 pixels, not 8") as caught:
        build("fast-8", classes=3, size=(9, 8))
    assert "image_size=9" in caught.value.fix


def test_only_names_of_our_own_networks_belong_to_a_family():
    names = {"resnet50": "resnet50", "wrn-28-2": "wrn", "fast-24": "fast"}
    assert {name: family(name) for name in names} == names
    for name in ("fast-net.py:build", "wrn-x.py:build", "timm:resnet50", "resnet50d", "fast-"):
        assert family(name) is None and may_draw(name)
    assert not any(may_draw(name) for name in MODELS)


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet50", "fast-8"])
def test_heads_and_features(name):
    model = build(name, classes=3, heads={"rotation": 4}).eval()
    x = torch.randn(2, 3, 32, 32)
    out = model(x, heads=True)
    assert {key: tuple(value.shape[1:]) for key, value in out.items()} == {
        "logits": (3,),
        "features": (2048 if name == "resnet50" else 64,),
        "rotation": (4,),
    }
    torch.testing.assert_close(out["logits"], model(x))


@pytest.mark.parametrize("name", ["wrn-16-2", "fast-8"])
def test_activations_stay_channels_last(name):
    model = build(name, classes=3)
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


@pytest.mark.parametrize("name", ["fast-0", "fast-4", "fast-20", "fast", "fast-W", "fast-24-2"])
def test_a_width_that_is_not_there(name):
    with pytest.raises(ConfigError, match=name) as caught:
        build(name, classes=10)
    assert "fast-24" in caught.value.fix and "\n" not in caught.value.what + caught.value.fix


def test_a_variant_that_is_not_there():
    with pytest.raises(ConfigError, match="variant"):
        build("wrn-10-1", classes=10, variant="tensorflow")
