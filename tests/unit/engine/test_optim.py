"""AdamW, warm-up, layer decay and the classifier's own rate, against plain PyTorch and timm."""

import copy
import math
import sys

import pytest
import torch
from torch import nn

from fastssl.algorithms.base import Nets
from fastssl.config.resolve import load
from fastssl.config.schema import RunConfig
from fastssl.engine import devices, loop, optim
from fastssl.engine.build import assemble, build_model
from fastssl.errors import ConfigError
from tests import ranked
from tests.runs import TINY, assert_same

SMALL = {
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 24},
    "vit_small_patch14_dinov2": {"img_size": 28, "depth": 2, "embed_dim": 24, "num_heads": 3},
    "convnext_atto": {"depths": (1, 1, 2, 1), "dims": (8, 8, 16, 16)},
    "resnet18": {},
    "tf_efficientnet_lite0": {},
}  # a transformer, one without a class token's norm, and three kinds of convolutional networks


@pytest.fixture
def timm():
    """Return timm; the steps of AdamW need no more than PyTorch."""
    pytest.importorskip("timm.optim", reason="timm is not installed")
    return sys.modules["timm"]


def factor(step, warmup, steps):
    """Return the learning rate over its largest, written down independently."""
    if step < warmup:
        return step / warmup
    return math.cos(math.pi * 7 / 16 * ((step - warmup) / (steps - warmup)))


def close(one, other):
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: name + m)


@pytest.mark.parametrize("warmup", [0, 3])
def test_adamw_with_warmup_takes_the_steps_of_plain_torch(data, warmup, monkeypatch):
    keys = ["optimizer=adamw", "lr=0.01", "weight_decay=0.1", f"warmup={warmup}"]
    resolved = load("digits", [*TINY, *keys, "algorithm=fixmatch", "algo.threshold=0.2"])
    # In double: AdamW would blow up the rounding errors of gradients that are 0, such as those of
    # a bias before BatchNorm.
    built = build_model(resolved, 10, devices.choose(resolved.config)).double()
    built.register_forward_pre_hook(ranked._widen)
    monkeypatch.setattr("fastssl.engine.build.build_model", lambda *given: built)
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    start, plain = copy.deepcopy(learner.model), copy.deepcopy(learner.model).train()
    learner.student.train()
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.01, fused=False, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda k: factor(k, warmup, 8))
    for step in range(6):
        batch = feed.loader.batch(step)
        loop.train_step(learner, batch, step)
        adamw.zero_grad()
        given = (batch, {}, resolved.settings, learner.fraction, learner.ranks)
        learner.algorithm.step(Nets(plain, learner.ema.model), *given).loss.backward()
        adamw.step()
        schedule.step()
        close(learner.model, plain)
    feed.close()
    assert not torch.equal(start.classifier.weight, plain.classifier.weight)


@pytest.mark.parametrize("name", SMALL)
def test_layer_decay_takes_the_steps_of_timm(name, timm):
    torch.manual_seed(0)
    ours = timm.create_model(name, num_classes=3, **SMALL[name]).eval().double()
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.01, "warmup": 2, "steps": 9, "layer_decay": 0.6, "weight_decay": 0.1}
    config = RunConfig(optimizer="adamw", **settings)
    optimizer = optim.build(ours, config)
    kept = getattr(theirs, "no_weight_decay", set)()
    groups = timm.optim.param_groups_layer_decay(theirs, 0.1, kept, layer_decay=0.6)
    plain = torch.optim.AdamW(groups, lr=0.01, fused=False, foreach=False)
    size = SMALL[name].get("img_size", 32)
    for step in range(5):
        images = torch.randn(4, 3, size, size, dtype=torch.float64)
        for model in (ours, theirs):
            model.zero_grad()
            nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2, 0])).backward()
        optim.set_learning_rate(optimizer, optim.learning_rate(config, step))
        for group in plain.param_groups:
            group["lr"] = 0.01 * factor(step, 2, 9) * group["lr_scale"]
        optimizer.step()
        plain.step()
    close(ours, theirs)
    scales = {group["lr_scale"] for group in optimizer.param_groups}
    assert scales == {group["lr_scale"] for group in groups} and len(scales) > 3


class Wrapped(nn.Module):
    """A model of timm without its classifier, which we hold."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.classifier = nn.Linear(self.body.num_features, 3)
        self.heads = nn.ModuleDict({"rotation": nn.Linear(self.body.num_features, 4)})


@pytest.mark.parametrize("name", SMALL)
def test_a_classifier_outside_the_model_of_timm_is_its_last_layer(name, timm):
    whole = timm.create_model(name, num_classes=3, **SMALL[name])
    wrapped = Wrapped(timm.create_model(name, num_classes=0, **SMALL[name]))
    expected = optim.layer_scales(whole, 0.5)
    found = optim.layer_scales(wrapped, 0.5)
    for key in set(found) - optim.head_names(wrapped):
        assert found[key] == expected[key.removeprefix("body.")], key
    assert {found[key] for key in optim.head_names(wrapped)} == {1.0}
    config = RunConfig(optimizer="adamw", lr=0.01, layer_decay=0.5, head_lr=0.1)
    groups = optim.parameter_groups(wrapped, config)
    rates = {p: group["lr_scale"] for group in groups for p in group["params"]}
    assert rates[wrapped.classifier.weight] == rates[wrapped.heads["rotation"].bias] == 10
    assert rates.keys() == set(wrapped.parameters())
    assert max(rates[p] for p in wrapped.body.parameters()) <= 1


def test_the_default_groups_and_rates_are_those_of_the_paper(data):
    resolved = load("digits", TINY)
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    feed.close()
    parameters = list(learner.model.parameters())
    decayed, others = (group["params"] for group in learner.optimizer.param_groups)
    assert_same(decayed, [p for p in parameters if p.ndim > 1], "decayed")
    assert_same(others, [p for p in parameters if p.ndim <= 1], "others")
    config = RunConfig(steps=1000)
    for step in (0, 1, 333, 999):
        rate = 0.03 * math.cos(7 * math.pi / 16 * step / 1000)
        assert optim.learning_rate(config, step) == rate


@pytest.mark.parametrize("warmup", [0, 4])
def test_a_linear_schedule_falls_to_zero_at_the_end(warmup):
    config = RunConfig(steps=10, warmup=warmup, lr=0.5, schedule="linear")
    rates = [optim.learning_rate(config, step) for step in range(11)]
    rise = [0.5 * step / 4 for step in range(warmup)]
    fall = [0.5 * left / (10 - warmup) for left in range(10 - warmup, -1, -1)]
    assert rates == pytest.approx(rise + fall)
    assert rates[-1] == 0


def test_layer_decay_needs_a_model_that_declares_its_layers():
    config = RunConfig(layer_decay=0.5)
    with pytest.raises(ConfigError, match=r"layer_decay=0\.5 needs a model") as caught:
        optim.build(nn.Linear(2, 2), config)
    assert "layer_decay=1" in caught.value.fix


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimizer=adamw"], "needs an lr"),
        (["warmup=1000"], "less than steps"),
        (["optimizer=adam"], "optimizer is 'adam'"),
        (["optimizer=muon", "precision=fp16"], "does not go with precision=fp16"),
        (["optimizer=muon", "momentum=0"], "nesterov=false"),
        (["schedule=step"], "schedule is 'step'"),
        (["muon_momentum=1"], "muon_momentum is 1"),
        (["temperature=0"], "temperature is 0"),
        (["freeze=all"], "freeze is 'all'"),
        (["drop_path=1"], "drop_path is 1"),
    ],
)
def test_impossible_settings_are_refused(overrides, expected):
    with pytest.raises(ConfigError, match=expected):
        load("digits", overrides)


def test_adamw_needs_no_momentum():
    assert load("digits", ["optimizer=adamw", "lr=0.001", "momentum=0"]).config.momentum == 0


def test_numbers_are_drawn_anew_in_each_step_and_on_each_rank():
    def draws(*key):
        optim.reseed(*key)
        return torch.rand(4).tolist()

    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**31 - 1, 2**20, 7)]
    found = [draws(*key) for key in keys]
    assert found == [draws(*key) for key in keys]
    assert len({tuple(some) for some in found}) == len(keys)
