"""What holds for a small network of every family of our own: it trains, resumes and exports."""

import numpy as np
import pytest
import torch
import yaml

import fastssl
from fastssl import models
from fastssl.config.resolve import load
from fastssl.engine import devices
from fastssl.engine.build import assemble
from fastssl.models.classifier import classifier_of, features_of, head_names
from pipelines.store.store import open_store
from tests import ranked, runs
from tests.runs import TINY

SMALL = {"wrn": "wrn-10-1", "fast": "fast-8"}
EVERY = pytest.mark.parametrize("name", SMALL.values())


def test_every_family_has_a_small_network_here():
    assert {*SMALL, "resnet50"} == set(models.FAMILIES)  # a ResNet-50 is too large for quick tests
    assert all(models.family(name) == kind for kind, name in SMALL.items())


@EVERY
def test_a_network_has_what_probes_and_settings_use(name):
    model = models.build(name, classes=3, heads={"rotation": 4})
    classifier = classifier_of(model, "head_lr")
    assert classifier.out_features == 3
    assert head_names(model) == {
        f"{head}.{kind}" for head in ("classifier", "heads.rotation") for kind in ("weight", "bias")
    }
    images = torch.randn(2, 3, 16, 16)
    features = features_of(model.eval(), images)
    torch.testing.assert_close(classifier(features), model(images))


MUON = ["optimizer=muon", "schedule=linear", "warmup=2", "head_lr=0.1"]


@EVERY
@pytest.mark.parametrize("keys", [[], MUON], ids=["sgd", "muon"])
def test_a_killed_run_is_the_uninterrupted_one(name, keys, data, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert runs.train(whole, f"model={name}", *keys) == 0
    assert runs.train(broken, f"model={name}", *keys, kill_at=5) == -9
    assert runs.train(broken, f"model={name}", *keys, resume=True) == 0
    runs.assert_same_run(whole, broken)


def test_two_ranks_train_with_muon_as_one_process(data, tmp_path):
    overrides = ["model=fast-8", *MUON, "steps=4", "algo.threshold=0.2"]
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
    feed.close()
    torch._dynamo.reset()
    losses = []
    for step in (learner.step, torch.compile(learner.step, fullgraph=True, backend="aot_eager")):
        state = {key: value.clone() for key, value in learner.state.items()}
        given = (batch, state, resolved.settings, learner.fraction, learner.ranks)
        losses.append(step(learner.nets, *given).loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module", params=SMALL.values())
def trained(request, data, tmp_path_factory):
    """Return a run of a network, trained in this process."""
    out = tmp_path_factory.mktemp("network") / "run"
    given = yaml.safe_load("\n".join(word.replace("=", ": ") for word in TINY))
    fastssl.train("digits", out=out, **{**given, "model": request.param, "steps": 20})
    return out


def test_the_error_of_predict_is_that_of_eval(trained, data):
    store = open_store(data / "digits")
    images = np.stack([store.image("test", index) for index in range(360)])
    labels = [one.label for one in fastssl.load(trained).predict(images)]
    truth = [store.class_names[label] for label in store.labels("test")]
    error = 100 * np.mean([one != other for one, other in zip(labels, truth, strict=True)])
    assert fastssl.evaluate(trained)["error"] == pytest.approx(error)


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_an_exported_program_gives_the_same_logits(trained, tmp_path, kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    done = fastssl.export(trained, tmp_path / f"model.{kind}")
    assert 0 <= done["difference"] <= 1e-4
