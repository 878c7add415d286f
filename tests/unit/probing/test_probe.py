"""`probe` writes a run that every other verb takes, with the labels that a training would have."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml

import fastssl
from fastssl.config.resolve import load
from fastssl.engine.build_data import find_store, make_data
from fastssl.errors import ConfigError, DataError
from fastssl.inference.predictor import Predictor
from fastssl.inference.pseudo_label import pseudo_label
from fastssl.probing.choose import network_of_run
from fastssl.probing.features import compute_features
from pipelines.store.store import open_store
from tests.image_files import write_flat, write_folder
from tests.small_stores import digits_without_test

SETTINGS = {"model": "wrn-10-1", "threads": 1, "loader_threads": 1, "tensorboard": False}


@pytest.fixture(scope="module")
def probed(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("probe") / "run"
    return out, fastssl.probe("digits", out=out, labels=100, **SETTINGS)


def test_a_probe_learns_and_reports_what_it_wrote(probed):
    out, done = probed
    names = [row["head"] for row in done["heads"]]
    assert names[:3] == ["linear", "knn", "spreading"] and names[3].endswith("written")
    written = done["heads"][3]
    assert written["accuracy"] > 60 and 0 <= written["ece"] < 0.5 and written["labels"] == 100
    best = max(done["heads"][:3], key=lambda row: row["cross-validation"])
    assert names[3].startswith(best["head"]) and best["head"] in done["note"]
    assert json.loads((out / "probe.json").read_text())["heads"] == done["heads"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["labels"] == 100
    assert summary["best_error"] == pytest.approx(100 - written["accuracy"], abs=0.005)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["freeze"] == "backbone" and config["labels"] == 100
    assert (out / "environment.json").exists()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["eval"]


def test_eval_gives_the_accuracy_of_the_table(probed):
    out, done = probed
    metrics = fastssl.evaluate(out)
    assert metrics["accuracy"] == pytest.approx(done["heads"][3]["accuracy"], abs=0.3)
    assert metrics["ece"] == pytest.approx(done["heads"][3]["ece"], abs=1e-3)


def test_the_network_gives_the_logits_of_the_folded_classifier(probed):
    model = Predictor(probed[0])
    store = find_store(model.resolved)
    rows = compute_features(network_of_run(model), store)["test"]
    expected = rows @ model.model.classifier.weight.detach().numpy().T
    expected += model.model.classifier.bias.detach().numpy()
    found = np.concatenate(list(model.store(store, "test", np.arange(360))))
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_the_network_of_a_probe_has_the_weights_that_it_started_from(probed, tmp_path):
    given = {**SETTINGS, "labels": 20, "seed": 3, "pretrained": str(probed[0])}
    again = fastssl.probe("digits", out=tmp_path / "again", **given)
    one, other = (Predictor(path).model.state_dict() for path in (probed[0], again["run"]))
    same = {name: bool((one[name] == other[name]).all()) for name in one}
    assert [name for name in same if not same[name]] == ["classifier.weight", "classifier.bias"]


def test_predict_label_export_and_report_take_the_run(probed, tmp_path):
    out, _ = probed
    model = fastssl.load(out)
    store = open_store(find_store(model.resolved).path)
    assert model.predict(np.array(store.image("test", 0))).label in model.classes
    done = fastssl.label(out, store.path, tmp_path / "pseudo.csv", floor=0.5)
    assert done["images"] == 1337
    assert fastssl.export(out, tmp_path / "model.safetensors")["difference"] == 0
    assert fastssl.make_report(out, tmp_path / "report.md")
    assert "supervised" in (tmp_path / "report.md").read_text()


def test_the_labels_are_those_of_a_training(data, tmp_path, monkeypatch):
    from fastssl.probing import probe as module

    seen = []
    original = module.make_task

    def record(store, split, rows):
        seen.append(split)
        return original(store, split, rows)

    monkeypatch.setattr(module, "make_task", record)
    given = {**SETTINGS, "labels": 30, "seed": 4, "split_seed": 7}
    fastssl.probe("digits", out=tmp_path / "a", **given)
    resolved = load("digits", {**given, "algorithm": "flexmatch"})
    split, _ = make_data(resolved, find_store(resolved), 1)
    assert np.array_equal(seen[0].labeled, split.labeled)
    listed = tmp_path / "labels.csv"
    listed.write_text("\n".join(map(str, split.labeled[:15])))
    fastssl.probe("digits", out=tmp_path / "b", label_file=str(listed),
                  **{**SETTINGS, "labels": 15})  # fmt: skip
    assert np.array_equal(seen[1].labeled, split.labeled[:15])


def test_one_label_per_class_is_spread_without_a_comparison(data, tmp_path):
    done = fastssl.probe("digits", out=tmp_path / "run", labels=10, **SETTINGS)
    assert "without a comparison" in done["note"] and done["heads"][3]["head"].startswith("spread")
    assert all(row["cross-validation"] is None for row in done["heads"])
    assert done["heads"][3]["accuracy"] > 30


def test_validation_images_are_not_in_the_graph(data, tmp_path, monkeypatch):
    from fastssl.probing import graph

    counts = []
    original = graph.neighbor_graph
    monkeypatch.setattr(
        graph, "neighbor_graph", lambda space: (counts.append(len(space.rows)), original(space))[1]
    )
    done = fastssl.probe("digits", out=tmp_path / "run", labels=20, validation=137, **SETTINGS)
    assert counts == [1300]
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert 0 <= line["validation_error"] < 90 and done["heads"][0]["accuracy"]


def test_a_temperature_changes_nothing_about_the_result(probed, tmp_path):
    done = fastssl.probe("digits", out=tmp_path / "run", labels=100, temperature=0.1, **SETTINGS)
    found, expected = fastssl.evaluate(done["run"]), fastssl.evaluate(probed[0])
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_mistakes_are_two_lines(data, tmp_path, probed):
    with pytest.raises(ConfigError, match="not empty"):
        fastssl.probe("digits", out=probed[0], **SETTINGS)
    with pytest.raises(ConfigError, match="has no algorithm"):
        fastssl.probe("digits", out=tmp_path / "x", algorithm="fixmatch")
    listed = tmp_path / "one.csv"
    labels = find_store(load("digits")).labels("train")
    listed.write_text("\n".join(map(str, np.flatnonzero(labels == 3)[:4])))
    with pytest.raises(DataError, match="of 1 class"):
        fastssl.probe("digits", out=tmp_path / "x", label_file=str(listed),
                      **{**SETTINGS, "labels": 4})  # fmt: skip
    assert not (tmp_path / "x").exists()


NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.between = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.classifier = nn.Linear(4, classes, bias=BIAS)

    def forward(self, x, heads=False):
        features = self.body(x).mean((2, 3))
        logits = self.classifier(self.between(features))
        return {"logits": logits, "features": features} if heads else logits
"""


@pytest.mark.parametrize(
    ("bias", "message"), [("True", r"\(8,\) features .* of 4"), ("False", "has no bias")]
)
def test_a_network_whose_classifier_cannot_be_fitted_is_refused(data, tmp_path, bias, message):
    (tmp_path / "net.py").write_text(NETWORK.replace("BIAS", bias))
    given = {**SETTINGS, "model": f"{tmp_path / 'net.py'}:Net"}
    with pytest.raises(ConfigError, match=message):
        fastssl.probe("digits", out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_store_without_labels_is_refused(tmp_path):
    from PIL import Image

    (tmp_path / "images").mkdir()
    for number in range(4):
        Image.new("RGB", (16, 16), (60 * number, 0, 0)).save(tmp_path / f"images/{number}.png")
    fastssl.convert(tmp_path / "images", tmp_path / "store", no_labels=True, progress=False)
    with pytest.raises(DataError, match="no labeled image") as caught:
        fastssl.probe(tmp_path / "store", out=tmp_path / "run", **SETTINGS)
    assert f"fastssl choose {tmp_path / 'store'} -n 25 " in caught.value.fix


def test_an_interrupted_probe_leaves_no_run_and_starts_again(data, tmp_path, monkeypatch):
    from fastssl.probing import features

    shutil.copytree(data / "digits", tmp_path / "digits")
    store, given = tmp_path / "digits", {**SETTINGS, "labels": 20}
    with monkeypatch.context() as context:
        context.setattr(features, "_forward", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fastssl.probe(store, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
    assert fastssl.probe(store, out=tmp_path / "run", **given)["heads"]


def test_a_probe_and_a_choice_name_the_images_that_the_weights_expect(tmp_path, capfd):
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), tmp_path / "w.pth")
    write_folder(tmp_path / "images", 2, 4)
    write_flat(tmp_path / "more", 6)
    store = tmp_path / "store"
    fastssl.convert(tmp_path / "images", store, size=32, unlabeled=tmp_path / "more")
    given = {**SETTINGS, "model": "torchvision:resnet18", "pretrained": str(tmp_path / "w.pth")}
    line = "fastssl convert SOURCE OUT --size 224 --interpolation bilinear\n"
    capfd.readouterr()
    fastssl.probe(store, out=tmp_path / "run", **given)
    assert capfd.readouterr().err.count(line) == 1
    fastssl.choose(store, 2, out=tmp_path / "l.csv", **given)
    assert capfd.readouterr().err.count(line) == 1


def test_label_fits_the_classifier_again_where_no_label_is_held_out(data, tmp_path):
    (tmp_path / "digits").symlink_to(data / "digits")
    store = digits_without_test(tmp_path / "own")
    out = tmp_path / "run"
    fastssl.probe(store.path, out=out, labels=40, **SETTINGS)
    done = fastssl.label(out, store.path, tmp_path / "pseudo.csv", floor=0.5)
    result = done["precision"]
    assert result["models"] == 4 and result["held_out"] == 40, "one label of each class at a time"
    assert "cross-fitted over 4 models" in done["expected"]
    found = pseudo_label(Predictor(out), store, 0.5)
    right = found.label == store.labels("train")[found.indices]
    # The upper end need not hold: the run learned from more labels than these models.
    assert result["low"] <= right[found.trusted].mean()
    assert 0 < result["low"] < result["high"] < 1
    # A fold without its summary was interrupted and is made again; the others are kept.
    folds = sorted(out.glob("cross-fit/*/fold-?"))
    (folds[1] / "summary.json").unlink()
    kept = [(fold / "summary.json").stat().st_mtime_ns for fold in folds if fold != folds[1]]
    assert fastssl.label(out, store.path, tmp_path / "pseudo.csv", floor=0.5) == done
    assert kept == [(f / "summary.json").stat().st_mtime_ns for f in folds if f != folds[1]]
