"""What every algorithm would do on CUDA with the networks of the paper: types and layouts."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn

from fastssl import models
from fastssl.algorithms import ALGORITHMS, Nets
from fastssl.algorithms.common import losses
from fastssl.distributed.collectives import Ranks
from pipelines.loader.batch import Batch
from tests.fake_cuda import fake_cuda, no_host_wait
from tests.steps import CLASSES, facts

SMALL = {"wrn-10-1": 8}  # network: side of the images
NETWORKS = {"wrn-28-2": 16, "resnet50": 32, "fast-24": 16}
QUICK = ("flexmatch", "remixmatch", "meanteacher")


def cuda_network(model):
    """Build as `build` does; fake parameters cannot be moved or laid out anew in place."""
    with mock.patch("torch.cuda.is_available", lambda: False):  # else constants look for a driver
        net = models._build(model, CLASSES, "torchssl", {"rotation": 4})
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            laid = torch.empty_like(module.weight, memory_format=torch.channels_last)
            module.weight = nn.Parameter(laid)
    return net


def make_cuda_batch(algorithm, size):
    def make_images(count):
        return torch.empty(count, 3, size, size).contiguous(memory_format=torch.channels_last)

    count = 8 if algorithm.views else 0
    positions = torch.zeros(count, dtype=torch.int64)
    return Batch(
        images=make_images(4),
        labels=torch.zeros(4, dtype=torch.int64),
        views={view: make_images(count) for view in algorithm.views},
        position=positions,
        global_positions=positions,
        key=torch.zeros(2, dtype=torch.int64),
    )


def layers_are_half_and_channels_last(model, seen, halves):
    """Watch every layer: convolutions give bfloat16, and all activations are channels-last."""

    def look(module, inputs, output):
        assert output.device.type == "cuda"
        if isinstance(module, nn.Conv2d):
            # VAT turns autocast off where it probes: there a small change would drown.
            half = torch.is_autocast_enabled("cuda")
            wanted = torch.bfloat16 if half else torch.float32
            assert output.dtype == wanted, f"{module} gives {output.dtype}"
            halves.append(half)
        for tensor in (inputs[0], output):
            _, channels, height, width = tensor.shape
            if channels > 1 and height * width > 1:
                assert tensor.is_contiguous(memory_format=torch.channels_last), f"{module}: NCHW"
        seen.append(module)

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            module.register_forward_hook(look)


def as_cudnn(images, weight, backend):
    """Give the layout that cuDNN gives; without a driver torch thinks of a slow way in NCHW."""
    last = torch.channels_last
    either = any(t.is_contiguous(memory_format=last) for t in (images, weight))
    return last if either else torch.contiguous_format


def step(name, model, monkeypatch, **settings):
    algorithm = ALGORITHMS[name]
    # a gradient inside the step needs a driver; its forward does not
    monkeypatch.setattr(losses, "input_gradient", lambda function, at: at * function(at))
    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", as_cudnn)
    seen, halves = [], []
    with fake_cuda(), torch.device("cuda"):
        nets = Nets(cuda_network(model), cuda_network(model))
        layers_are_half_and_channels_last(nets.student, seen, halves)
        batch = make_cuda_batch(algorithm, (SMALL | NETWORKS)[model])
        config = algorithm.config(**settings)
        shares = torch.full((CLASSES,), 1 / CLASSES)
        state = algorithm.init_state(config, replace(facts(), labeled_shares=shares, device="cuda"))
        kinds = {key: value.dtype for key, value in state.items()}
        with no_host_wait(), torch.autocast("cuda", torch.bfloat16):
            out = algorithm.step(nets, batch, state, config, torch.zeros(()), Ranks())
        assert out.loss.dtype == torch.float32 and out.loss.device.type == "cuda"
        for value in (*out.metrics.values(), *out.tables.values()):
            assert value.dtype in (torch.float32, torch.int32, torch.int64)
        assert {key: value.dtype for key, value in state.items()} == kinds
        assert torch.bfloat16 not in kinds.values()  # curricula and averages stay whole
    used = sum(isinstance(m, nn.Conv2d) for m in nets.student.modules())
    assert sum(halves) >= used
    assert all(halves) or name == "vat"
    assert len(seen) >= 2 * used - 5  # shortcuts have no BatchNorm, and two have no reader


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_step_would_run_on_cuda_without_waiting(name, monkeypatch):
    step(name, "wrn-10-1", monkeypatch)


@pytest.mark.parametrize("name", ["fixmatch", "flexmatch", "freematch", "uda", "flexuda"])
def test_skipping_would_not_wait_on_cuda(name, monkeypatch):
    shared = {"forward": "skip", "slots": 4, "pseudo_labels": "teacher"}
    aligned = {"alignment": True} if "alignment" in ALGORITHMS[name].config.model_fields else {}
    step(name, "wrn-10-1", monkeypatch, **shared, **aligned)


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("name", QUICK)
def test_a_step_is_half_and_channels_last_on_cuda(name, model, monkeypatch):
    step(name, model, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in QUICK])
def test_any_step_is_half_and_channels_last_on_cuda(name, model, monkeypatch):
    step(name, model, monkeypatch)
