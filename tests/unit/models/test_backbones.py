"""Networks of timm and torchvision: names, sizes, heads, and what the list states about them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fastssl.config.resolve import load
from fastssl.errors import ConfigError
from fastssl.models import backbones, build, own_inputs
from fastssl.models.backbones import CHOICES, parse

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def needs(name):
    if name.startswith("timm:"):
        pytest.importorskip("timm", reason="timm is not installed")


@pytest.mark.parametrize("name", CHOICES)
def test_the_list_states_the_true_parameters_and_operations(name):
    needs(name)
    _, millions, operations = CHOICES[name]
    with torch.device("meta"):
        if name.startswith("timm:"):
            import timm

            model = timm.create_model(name.removeprefix("timm:"))
        else:
            from torchvision.models import get_model

            model = get_model(name.removeprefix("torchvision:"))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.006)
    size = own_inputs(name).size
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, *size, device="meta"))
    assert counter.get_total_flops() / 2e9 == pytest.approx(operations, abs=0.006)


SMALL = [
    ("timm:vit_tiny_patch16_224:patch_size=8,depth=2,embed_dim=24", 16, 24),
    ("timm:convnext_atto:patch_size=1,depths=(1,1,2,1),dims=(8,8,16,16)", 16, 16),
    ("timm:mobilenetv3_small_050", 32, 1024),
    ("torchvision:resnet18", 32, 512),
    ("torchvision:mobilenet_v3_small", 32, 1024),
]


@pytest.mark.parametrize(("name", "side", "width"), SMALL)
def test_a_body_has_our_classifier_and_heads_on_its_features(name, side, width):
    needs(name)
    model = build(name, classes=7, heads={"rotation": 4}, size=(side, side)).eval()
    assert isinstance(model.classifier, nn.Linear) and model.training is False
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        found = model(images, heads=True)
        assert {key: list(value.shape) for key, value in found.items()} == {
            "logits": [2, 7],
            "features": [2, width],
            "rotation": [2, 4],
        }
        features = model.body(images)
        torch.testing.assert_close(model(images), model.classifier(features.flatten(1)))


@pytest.mark.parametrize(
    "name", ["torchvision:efficientnet_b0", "torchvision:swin_t", "timm:mobilenetv3_small_050"]
)
def test_without_drop_path_a_network_draws_no_random_numbers(name):
    needs(name)
    side = 64 if "swin" in name else 32
    model = build(name, classes=3, size=(side, side)).train()
    before = torch.get_rng_state()
    model(torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore")  # of torchvision, about its own initial weights
def test_auxiliary_classifiers_are_left_out():
    model = build("torchvision:googlenet", classes=3, size=(32, 32)).train()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model.body.transform_input and not [n for n, _ in model.named_modules() if "aux" in n]


def test_drop_path_is_the_largest_rate_of_a_network_of_torchvision():
    model = build("torchvision:efficientnet_b0", classes=3, drop_path=0.4, size=(32, 32))
    rates = [one.p for one in model.modules() if type(one).__name__ == "StochasticDepth"]
    assert max(rates) == pytest.approx(0.4) and min(rates) == 0
    with pytest.raises(ConfigError, match="stochastic depth"):
        build("torchvision:resnet18", classes=3, drop_path=0.4)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("timm:resnet81", "timm:resnet18"),
        ("timm:resnet18.a1_in2k", "timm:resnet18.a1_in1k"),
        ("torchvision:resnet181", "torchvision:resnet18"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    needs(name)
    with pytest.raises(ConfigError, match="has no classifier named") as caught:
        load("digits", [f"model={name}"])
    assert near in str(caught.value)


def test_without_timm_the_line_to_install_it_is_shown(monkeypatch):
    monkeypatch.setattr(backbones, "import_problem", lambda name: "is not installed")
    with pytest.raises(ConfigError, match=r"timm, which is not installed") as caught:
        load("digits", ["model=timm:resnet18"])
    assert "pip install 'fastssl[timm]'" in str(caught.value)


def test_a_size_that_a_network_does_not_take_is_refused():
    pytest.importorskip("timm", reason="timm is not installed")
    with pytest.raises(ConfigError, match="takes no images of 16x16 pixels") as caught:
        build("timm:convnext_atto", classes=3, size=(16, 16))
    assert "image_size=224" in caught.value.fix


def test_arguments_follow_the_name():
    found = parse("timm:vit:patch_size=2,global_pool=avg,depths=(1,2)")
    assert found.arguments == {"patch_size": 2, "global_pool": "avg", "depths": (1, 2)}
    assert parse("wrn-28-2") is None and parse("file.py:build") is None
    code = ("open('x').read()", "3", "checkpoint_path=weights", "pretrained_cfg='x'")
    for given in (*code, "a={[]: 1}", "img_size=large", "img_size=0"):
        with pytest.raises(ConfigError, match="no list of arguments"):
            parse(f"timm:vit:{given}")
    pytest.importorskip("timm", reason="timm is not installed")
    small = "vit_tiny_patch16_224:depth=1"
    for name in ("resnet18:nothing=3", "resnet18:act_layer=none", f"{small},embed_dim=190"):
        with pytest.raises(ConfigError, match="cannot be built"):
            build(f"timm:{name}", classes=3)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("timm:resnet18", ((224, 224), *IMAGENET, "bicubic")),
        ("timm:vit_tiny_patch16_224", ((224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic")),
        ("timm:dla34", ((224, 224), *IMAGENET, "bilinear")),
        ("torchvision:resnet18", ((224, 224), *IMAGENET, "bilinear")),
        ("wrn-28-2", None),
    ],
)
def test_own_inputs_are_those_of_the_published_weights(name, inputs):
    needs(name)
    assert own_inputs(name) == inputs


@pytest.mark.parametrize("name", CHOICES)
def test_a_good_choice_names_an_interpolation_other_than_converts(name):
    needs(name)
    interpolation = own_inputs(name).interpolation
    assert ("bilinear" in CHOICES[name][0]) == (interpolation == "bilinear")
    assert interpolation in ("bilinear", "bicubic")
