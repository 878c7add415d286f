"""Freezing, the temperature and the initial classifier, in runs on the digits."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import fastssl
from fastssl import models
from fastssl.config.resolve import load
from fastssl.engine import checkpoint, devices, loop
from fastssl.engine.build import assemble
from fastssl.errors import ConfigError
from fastssl.inference import export
from fastssl.models.classifier import freeze, head_names, set_class_means
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.store.store import open_store
from tests import ranked, runs
from tests.installed import each
from tests.runs import TINY, assert_same
from tests.unit.test_plugins import MODEL


def made(*overrides):
    resolved = load("digits", [*TINY, *overrides])
    return assemble(resolved, devices.choose(resolved.config))


def trained_steps(learner, feed, steps=3):
    learner.student.train()
    for step in range(steps):
        loop.train_step(learner, feed.loader.batch(step), step)
    feed.close()


@pytest.mark.parametrize("optimizer", ["optimizer=sgd", "optimizer=adamw", "optimizer=muon"])
@pytest.mark.parametrize("frozen", ["backbone", "batchnorm"])
@pytest.mark.parametrize(
    "algorithm", ["fixmatch", "fixmatch algo.forward=split", "meanteacher", "remixmatch"]
)
def test_what_is_frozen_stays_as_it_is(data, frozen, algorithm, optimizer):
    overrides = f"algorithm={algorithm}".split()
    learner, feed = made(*overrides, optimizer, "lr=0.03", f"freeze={frozen}", "weight_decay=0.1")
    with torch.no_grad():  # statistics of their own, as those of a pretrained network
        for net in (learner.model, learner.ema.model):
            for name, buffer in net.named_buffers():
                buffer.add_(0.5 if "running" in name else 0)
    before, average = (
        copy.deepcopy(net.state_dict()) for net in (learner.model, learner.ema.model)
    )
    trained_steps(learner, feed)
    norms = {name.rpartition(".")[0] for name in before if "running" in name}
    heads = head_names(learner.model)
    parameters = dict(learner.model.named_parameters())
    for name, value in learner.model.state_dict().items():
        fixed = name.rpartition(".")[0] in norms or (frozen == "backbone" and name not in heads)
        assert torch.equal(value, before[name]) == fixed, name
        assert torch.equal(learner.ema.model.state_dict()[name], average[name]) == fixed, name
    held = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
    trained = heads if frozen == "backbone" else {n for n in parameters if "bn" not in n}
    assert held == {id(parameters[name]) for name in trained}


def test_frozen_batchnorm_normalizes_alike_in_both_modes_and_compiles(data):
    learner, feed = made("freeze=batchnorm")
    feed.close()
    images = torch.randn(6, 3, 16, 16)
    learner.model.train()
    some, all_of_them = learner.model(images[:2]), learner.model(images)
    torch.testing.assert_close(some, all_of_them[:2])
    torch.testing.assert_close(learner.model.eval()(images), all_of_them)
    compiled = torch.compile(learner.model.train(), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), all_of_them)


def features(learner, store, indices):
    """Return the features of training images, by the network in eval mode."""
    with torch.no_grad(), EvaluationBatches(store, "train", indices, size=(16, 16)) as batches:
        model = copy.deepcopy(learner.model).eval()
        return np.concatenate([model(x, heads=True)["features"].double() for x, _ in batches])


def test_the_classifier_of_class_means_is_that_of_numpy(data):
    learner, feed = made("head_init=means", "labels=60")
    feed.close()
    indices, store = feed.split.labeled, feed.store
    labels, found = store.labels("train")[indices], features(learner, store, indices)
    means = np.stack([found[labels == c].mean(axis=0) for c in range(10)])
    center = means.mean(axis=0)
    distance = np.sqrt((np.linalg.norm(found - center, axis=1) ** 2).mean())
    expected = [(m - center) / np.linalg.norm(m - center) / distance for m in means]
    classifier = learner.model.classifier
    np.testing.assert_allclose(classifier.weight.detach(), expected, rtol=1e-5, atol=1e-6)
    bias = -np.array(expected) @ center
    np.testing.assert_allclose(classifier.bias.detach(), bias, rtol=1e-5, atol=1e-6)
    assert_same(learner.ema.model.state_dict(), learner.model.state_dict(), "average")
    # The network is random, and yet images are nearer to the mean of their own class.
    cosines = found @ classifier.weight.detach().double().numpy().T + bias
    assert (cosines.argmax(axis=1) == labels).mean() > 0.5
    assert np.abs(cosines).max() < 3


def test_a_class_without_a_label_has_the_logit_zero():
    layer = torch.nn.Linear(2, 3)
    found = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    sums, counts = torch.cat([found, torch.zeros(1, 2)]), torch.tensor([1.0, 1.0, 0.0])
    set_class_means(layer, sums, counts, found.square().sum())
    logits = layer(found.float())
    expected = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


def test_class_means_are_computed_at_a_fresh_start_only(data, tmp_path):
    out, overrides = tmp_path / "run", ["head_init=means", "freeze=backbone"]
    assert runs.train(out, *overrides, kill_at=4) == -9
    assert runs.train(out, *overrides, before=forbid_means, resume=True) == 0
    whole = tmp_path / "whole"
    assert runs.train(whole, *overrides) == 0
    runs.assert_same_run(whole, out)


def forbid_means():
    from fastssl.engine import evaluation

    evaluation.init_classifier = None


@pytest.mark.parametrize("frozen", ["backbone", "batchnorm"])
def test_two_ranks_start_and_train_as_one(data, tmp_path, frozen):
    overrides = ["head_init=means", f"freeze={frozen}", "temperature=0.2", "labels=50"]
    overrides += ["steps=4", "lr=0.001"]  # small: BatchNorm that is frozen bounds nothing
    for world in (1, 2):
        codes = ranked.train(world, tmp_path / f"w{world}", *overrides, before=ranked.in_double)
        assert codes == [0] * world, ranked.message(tmp_path / f"w{world}", 0)
    one, two = (runs.last(tmp_path / f"w{world}")["model"] for world in (1, 2))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def sharp(data, tmp_path_factory):
    """Return a run with a temperature, and its network without one."""
    out = tmp_path_factory.mktemp("sharp") / "run"
    keys = dict(override.split("=") for override in TINY)
    fastssl.train("digits", out=out, temperature=0.25, labels=400, **keys)
    model = fastssl.load(out)
    plain = models.build("wrn-10-1", classes=10).eval()
    plain.load_state_dict(model.content["ema"])
    return out, model, plain


@torch.no_grad()
def test_training_evaluation_and_prediction_divide_by_the_temperature(sharp, data):
    out, model, plain = sharp
    store = open_store(data / "digits")
    ((images, labels),) = EvaluationBatches(store, "test", np.arange(360), size=(16, 16), batch=360)
    logits = plain(images) / 0.25
    torch.testing.assert_close(model.model(images), logits, rtol=1e-6, atol=1e-6)
    learner, feed = made("temperature=0.25")
    feed.close()
    plain = copy.deepcopy(plain).train()
    learner.model.load_state_dict(plain.state_dict())
    expected = plain(images, heads=True)["logits"] / 0.25
    for student in (learner.student, copy.deepcopy(learner.student)):
        found = student.train()(images, heads=True)["logits"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    assert fastssl.evaluate(out)["loss"] == pytest.approx(loss, rel=1e-5)
    image = store.image("test", 7)
    top = logits[7].double().softmax(dim=0).max()
    assert model.predict(image).probability == pytest.approx(float(top), rel=1e-5)


@pytest.mark.parametrize("kind", each("pt2", "onnx", "safetensors"))
def test_an_exported_program_divides_by_the_temperature(sharp, tmp_path, kind):
    out, model, plain = sharp
    file = tmp_path / f"model.{kind}"
    assert fastssl.export(out, file)["difference"] < 1e-4
    images = export.sample(model, 5)
    with torch.no_grad():
        found, expected = export.open_exported(file, model)(images), plain(images) / 0.25
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("setting", ["temperature=0.5", "freeze=backbone", "head_init=means"])
def test_a_model_without_a_classifier_is_refused(data, tmp_path, setting):
    (tmp_path / "net.py").write_text(MODEL)
    with pytest.raises(ConfigError, match=f"{setting} needs the classifier") as caught:
        made(setting, f"model={tmp_path / 'net.py'}:build")
    assert "classifier" in caught.value.fix


def test_frozen_batchnorm_of_any_kind_keeps_its_own_forward_pass():
    norm = pytest.importorskip("timm.layers").BatchNormAct2d(3)
    images = torch.randn(4, 3, 5, 5)
    expected = norm.eval()(images)
    freeze(norm, "batchnorm")
    torch.testing.assert_close(norm.train()(images), expected)
    assert not any(p.requires_grad for p in norm.parameters()) and norm.num_batches_tracked == 0


TRANSFORMER = """
import timm
from torch import nn

class Transformer(nn.Module):
    def __init__(self, classes, drop_path):
        super().__init__()
        self.body = timm.create_model(
            "vit_tiny_patch16_224", img_size=16, patch_size=8, depth=3, embed_dim=24, num_classes=0,
            drop_path_rate=drop_path,
        )
        self.classifier = nn.Linear(24, classes)

    def forward(self, x, heads=False):
        features = self.body(x)
        logits = self.classifier(features)
        return {"logits": logits, "features": features} if heads else logits

def build(classes, drop_path):
    return Transformer(classes, drop_path)
"""


@pytest.mark.parametrize("drop_path", [0.5, 0])
def test_a_killed_run_with_stochastic_depth_is_the_uninterrupted_one(data, tmp_path, drop_path):
    pytest.importorskip("timm")
    (tmp_path / "net.py").write_text(TRANSFORMER)
    overrides = [f"model={tmp_path / 'net.py'}:build", f"drop_path={drop_path}", "--trust-code"]
    overrides += ["optimizer=adamw", "lr=0.001", "warmup=3", "layer_decay=0.7", "head_lr=0.01"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert runs.train(whole, *overrides) == 0
    assert runs.train(broken, *overrides, kill_at=5) == -9
    assert runs.train(broken, *overrides, resume=True) == 0
    runs.assert_same_run(whole, broken)
    state = runs.last(whole)["optimizer"]["state"]
    assert {float(entry["step"]) for entry in state.values()} == {8.0}
    if drop_path:
        assert runs.train(tmp_path / "other", *overrides, "drop_path=0") == 0
        other, with_it = (runs.last(tmp_path / n)["model"] for n in ("other", "whole"))
        assert not torch.equal(other["classifier.weight"], with_it["classifier.weight"])


DROPOUT = """
from torch import nn

def build(classes):
    layers = [nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Dropout(0.5), nn.Linear(8, classes)]
    return nn.Sequential(*layers)
"""


def test_a_step_of_a_network_with_dropout_does_not_depend_on_the_steps_before(data, tmp_path):
    (tmp_path / "net.py").write_text(DROPOUT)
    gradients = []
    for draws in (0, 7):  # as in the uninterrupted run, and as after a resume
        learner, feed = made(f"model={tmp_path / 'net.py'}:build")
        torch.rand(draws)
        trained_steps(learner, feed, steps=1)
        gradients.append([p.grad.clone() for p in learner.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_nothing_is_reseeded_for_a_network_of_our_own(data):
    learner, feed = made()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained_steps(learner, feed, steps=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("model", ["wrn-10-1", "net.py:build"])
def test_a_model_without_stochastic_depth_refuses_a_rate(data, tmp_path, model):
    (tmp_path / "net.py").write_text(MODEL)
    name = str(tmp_path / model) if ":" in model else model
    with pytest.raises(ConfigError, match=r"drop_path|stochastic depth"):
        made("drop_path=0.1", f"model={name}")


ADDED = {
    "freeze", "head_init", "temperature", "drop_path", "optimizer", "warmup", "head_lr",
    "layer_decay", "schedule", "muon_lr", "muon_momentum", "muon_rescale",
}  # fmt: skip


def make_old(out: Path) -> None:
    """Remove from a run what earlier versions did not write."""
    values = yaml.safe_load((out / "config.yaml").read_text())
    kept = {key: value for key, value in values.items() if key not in ADDED}
    assert len(kept) == len(values) - len(ADDED)
    (out / "config.yaml").write_text(yaml.safe_dump(kept, sort_keys=False))
    for path in (out / "checkpoints").glob("*.ckpt"):
        content = checkpoint.read(path)
        content["config"] = kept
        for group in content["optimizer"]["param_groups"]:
            del group["lr_scale"]
        path.write_bytes(checkpoint.pack(content))


def test_a_run_from_before_these_keys_opens_and_resumes(data, tmp_path):
    whole, old = tmp_path / "whole", tmp_path / "old"
    assert runs.train(whole) == 0
    assert runs.train(old, kill_at=5) == -9
    make_old(old)
    assert runs.train(old, resume=True) == 0
    a, b = runs.last(whole), runs.last(old)
    for part in ("model", "ema", "state"):
        assert_same(a[part], b[part], part)
    assert_same(a["optimizer"]["state"], b["optimizer"]["state"], "optimizer")
    make_old(whole)
    assert fastssl.evaluate(whole)["error"] == fastssl.evaluate(old)["error"]
    assert len(fastssl.load(whole).classes) == 10


def test_a_run_does_not_continue_with_another_optimizer(data, tmp_path):
    out = tmp_path / "run"
    assert runs.train(out, "lr=0.01", kill_at=5) == -9
    assert runs.train(out, "lr=0.01", "optimizer=adamw", resume=True) == 2
