"""What holds for networks of timm: they train, resume, divide over ranks, compile and export."""

import numpy as np
import pytest
import torch

import fastssl
from fastssl.config.resolve import load
from fastssl.engine import compilation, devices, loop
from fastssl.engine.build import assemble
from pipelines.store.store import open_store
from tests import ranked, runs
from tests.runs import TINY

pytest.importorskip("timm", reason="timm is not installed")

VIT = "timm:vit_tiny_patch16_224:patch_size=8,depth=2,embed_dim=24"
CONVNEXT = "timm:convnext_atto:patch_size=1,depths=(1,1,2,1),dims=(8,8,16,16)"
EFFICIENTNET = "timm:tf_efficientnet_lite0"  # its BatchNorm applies an activation, too
EVERY = pytest.mark.parametrize("name", [VIT, CONVNEXT], ids=["vit", "convnext"])
ADAMW = ["optimizer=adamw", "lr=0.001", "warmup=2", "layer_decay=0.8"]


@EVERY
def test_a_killed_run_is_the_uninterrupted_one(name, data, tmp_path):
    overrides = [f"model={name}", *ADAMW, "drop_path=0.3"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert runs.train(whole, *overrides) == 0
    assert runs.train(broken, *overrides, kill_at=5) == -9
    assert runs.train(broken, *overrides, resume=True) == 0
    runs.assert_same_run(whole, broken)


@pytest.mark.parametrize(
    "name",
    [VIT, CONVNEXT, pytest.param(EFFICIENTNET, marks=pytest.mark.slow)],
    ids=["vit", "convnext", "efficientnet"],
)
def test_two_ranks_train_as_one_process(name, data, tmp_path):
    overrides = [f"model={name}", *ADAMW, "steps=4", "algo.threshold=0.2"]
    for world in (1, 2):
        codes = ranked.train(world, tmp_path / f"w{world}", *overrides, before=ranked.in_double)
        assert codes == [0] * world, ranked.message(tmp_path / f"w{world}", 0)
    one, two = (runs.last(tmp_path / f"w{world}")["model"] for world in (1, 2))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-10, atol=1e-10)


@EVERY
@pytest.mark.filterwarnings("ignore")  # of the compiler's own making
def test_a_step_compiles_in_one_graph(name, data):
    resolved = load("digits", [*TINY, f"model={name}", "algo.threshold=0.2"])
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    batch = feed.loader.batch(0)
    torch._dynamo.reset()
    compiled = torch.compile(learner.step, fullgraph=True, backend="aot_eager")
    losses, gradients = [], []
    for step in (learner.step, compiled):
        learner.model.zero_grad()
        state = {key: value.clone() for key, value in learner.state.items()}
        given = (batch, state, resolved.settings, learner.fraction, learner.ranks)
        out = step(learner.nets, *given)
        out.loss.backward()
        losses.append(out.loss.detach())
        gradients.append([p.grad.clone() for p in learner.model.parameters() if p.grad is not None])
    feed.close()
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def losses_of(name, mode):
    """Train a few steps as the engine does; return the losses, those of unlabeled images too."""
    overrides = [f"model={name}", *ADAMW, "algo.threshold=0.2", f"compile={mode}"]
    resolved = load("digits", [*TINY, *overrides])
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    compilation.choose(learner, feed.loader, 0)
    assert isinstance(learner.step, compilation.Compiled) == (mode == "step")
    learner.student.train()
    outs = [loop.train_step(learner, feed.loader.batch(step), step) for step in range(6)]
    feed.close()
    assert all(out.trusted.sum() > 0 for out in outs)
    return torch.stack([torch.stack([out.loss, out.metrics["loss/unlabeled"]]) for out in outs])


@pytest.mark.slow
@EVERY
@pytest.mark.filterwarnings("ignore")  # of the compiler's own making
def test_a_compiled_training_has_the_losses_of_one_that_is_not(name, data):
    torch._dynamo.reset()
    plain, compiled = (losses_of(name, mode).detach() for mode in ("off", "step"))
    # Measured on a CPU: 7e-7 at most, of losses between 0.6 and 4.7.
    torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-5)
    assert (plain[1:] - plain[:-1]).abs().min() > 1e-3, "the losses change from step to step"


@pytest.fixture(scope="module", params=[VIT, CONVNEXT], ids=["vit", "convnext"])
def trained(request, data, tmp_path_factory):
    """Return a run of a network, trained in this process."""
    out = tmp_path_factory.mktemp("backbone") / "run"
    overrides = [*TINY, f"model={request.param}", "optimizer=adamw", "lr=0.001", "steps=20"]
    keys = dict(override.split("=", 1) for override in overrides)
    keys = {k: float(v) if v.replace(".", "").isdigit() else v for k, v in keys.items()}
    keys = {k: int(v) if isinstance(v, float) and v == int(v) else v for k, v in keys.items()}
    fastssl.train("digits", out=out, **{**keys, "tensorboard": False})
    return out


def test_the_error_of_predict_is_that_of_eval(trained, data):
    store = open_store(data / "digits")
    images = np.stack([store.image("test", index) for index in range(360)])
    model = fastssl.load(trained)
    labels = [one.label for one in model.predict(images)]
    truth = [store.class_names[label] for label in store.labels("test")]
    error = 100 * np.mean([one != other for one, other in zip(labels, truth, strict=True)])
    found = fastssl.evaluate(trained)
    assert found["error"] == pytest.approx(error)
    lines = [line["loss"] for line in runs.metrics(trained) if "loss" in line]
    assert len(lines) > 5 and np.isfinite(lines).all()


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_an_exported_program_gives_the_same_logits(trained, tmp_path, kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    done = fastssl.export(trained, tmp_path / f"model.{kind}")
    assert 0 <= done["difference"] <= 1e-4
