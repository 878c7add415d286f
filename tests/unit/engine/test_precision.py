"""Arithmetic and memory layout: bf16 runs, and channels-last from the first layer to the last."""

import json

import pytest
import torch
from torch import nn

from fastssl import models
from fastssl.algorithms import ALGORITHMS
from fastssl.config.resolve import load
from fastssl.engine import devices
from fastssl.engine.loop import train_step
from fastssl.errors import ConfigError
from fastssl.inference.predictor import device_for
from fastssl.profiling.synthetic import make_batch, synthetic_learner
from pipelines.cpus import available_cpus
from tests import runs

LAYERS = (nn.Conv2d, nn.BatchNorm2d)


def watch(model, seen):
    """Fail where a convolution or BatchNorm gets or gives an activation laid out as NCHW."""

    def check(module, inputs, output):
        for what, tensor in (("gets", inputs[0]), ("gives", output)):
            _, channels, height, width = tensor.shape
            if channels > 1 and height * width > 1:
                fine = tensor.is_contiguous(memory_format=torch.channels_last)
                assert fine, f"{module} {what} NCHW: {tuple(tensor.shape)} {tensor.stride()}"
                seen.append(type(module))

    for module in model.modules():
        if isinstance(module, LAYERS):
            module.register_forward_hook(check)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_no_layer_gets_an_activation_in_nchw(name):
    run = synthetic_learner("wrn-10-1", 2, 40, algorithm=name)
    seen = []
    watch(run.model, seen)
    watch(run.ema.model, seen)
    batch = make_batch(2, 8, 40, 0, views=tuple(ALGORITHMS[name].views))
    train_step(run, batch, 0)
    assert len(seen) >= 2 * 14  # every layer that is read, both ways
    for parameter in run.model.parameters():
        if parameter.ndim == 4 and parameter.shape[1] > 1:
            assert parameter.is_contiguous(memory_format=torch.channels_last)
            if min(parameter.shape[2:]) > 1 and parameter.grad is not None:
                assert parameter.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("name", "layers"), [("resnet50", 50), ("fast-24", 13)])
def test_a_network_is_channels_last_throughout(name, layers):
    model = models.build(name, 10)
    seen = []
    watch(model, seen)
    images = torch.randn(2, 64, 64, 3).permute(0, 3, 1, 2)
    model(images).sum().backward()
    assert len(seen) > 2 * layers
    weights = [parameter for parameter in model.parameters() if parameter.ndim == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_an_activation_in_nchw_is_noticed():
    model = models.build("wrn-10-1", 10)
    watch(model, [])
    with pytest.raises(AssertionError, match="NCHW"):
        model(torch.randn(2, 3, 8, 8).contiguous())


def test_a_run_in_bf16_learns_and_says_so(data, tmp_path):
    out = tmp_path / "run"
    assert runs.train(out, "precision=bf16", "steps=2") == 0
    content = runs.last(out)
    assert content["config"]["precision"] == "bf16"
    for part in ("model", "ema"):
        kinds = {value.dtype for value in content[part].values()}
        assert kinds <= {torch.float32, torch.int64}  # weights and averages stay whole
    assert content["state"]["counts"].dtype == torch.int32
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "finished"


def test_autocast_is_what_was_asked_for():
    cpu = torch.device("cpu")
    for precision, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with devices.Device(cpu, precision, 1, 1).autocast():
            assert nn.Linear(3, 3)(torch.randn(2, 3)).dtype == kind


def test_precision_is_chosen_by_the_device(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert devices.choose_precision("auto", cpu) == "fp32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert devices.choose_precision("auto", cuda) == "bf16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert devices.choose_precision("auto", cuda) == "fp16"
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        devices.choose(load("digits", ["precision=fp16"]).config)


def test_inference_leaves_the_callers_process_as_it_is(monkeypatch):
    # A sweep with several jobs writes the threads of one job into a run's configuration.
    resolved = load("digits", ["threads=1", "precision=fp16"])
    changed = []
    monkeypatch.setattr(torch, "set_num_threads", changed.append)
    monkeypatch.setattr(devices, "keep_memory", lambda: changed.append("mallopt"))
    device = device_for(resolved, None)
    assert not changed
    assert device.threads == available_cpus()
    assert device.precision == "fp32", "a CPU evaluates an fp16 run in full precision"
    devices.choose(load("digits", ["threads=1"]).config)
    assert changed == [1, "mallopt"], "a training sets both"
