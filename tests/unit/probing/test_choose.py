"""`choose`: typical images of clusters, files that `convert --labels` takes back."""

import base64
import csv
import io
import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import fastssl
from fastssl.errors import ConfigError
from fastssl.probing import choose, graph, to_label
from fastssl.probing.choose import typical, uncertain
from fastssl.probing.graph import Space
from pipelines.store.store import open_store
from tests.image_files import write_flat

SETTINGS = {"model": "wrn-10-1", "threads": 1, "loader_threads": 1}


def clouds(counts, seed=0):
    """Return points around as many far directions as there are counts, and their cloud."""
    random = np.random.default_rng(seed)
    centers = 10 * np.eye(len(counts), 6)
    truth = np.repeat(np.arange(len(counts)), counts)
    rows = centers[truth] + random.normal(size=(len(truth), 6)) * 0.7
    return Space(rows.astype(np.float32), np.zeros(6), np.ones(6)), truth


def test_each_cluster_gives_its_most_typical_image():
    space, truth = clouds([40, 30, 50, 20])
    chosen = typical(space, np.arange(140), 4, 0)
    assert truth[chosen].tolist() == [2, 0, 1, 3]  # the largest cluster first
    unit = space.unit(space.rows)
    for image in chosen:
        own = np.flatnonzero(truth == truth[image])
        cosine = unit[own] @ unit[own].T
        near = np.sort(cosine - 2 * np.eye(len(own)), axis=1)[:, -min(20, len(own) - 1) :]
        assert own[near.mean(axis=1).argmax()] == image


def test_labeled_images_are_left_out_and_their_clusters_come_last(monkeypatch):
    monkeypatch.setattr(choose, "MOST_CLUSTERS", 4)
    space, truth = clouds([40, 30, 50, 20])
    labeled = typical(space, np.arange(140), 4, 0)[0]  # the most typical image of the largest cloud
    chosen = typical(space, np.delete(np.arange(140), labeled), 4, 0)
    assert truth[labeled] == 2 and truth[chosen].tolist() == [0, 1, 3, 2]
    assert labeled not in chosen


def test_all_images_can_be_chosen():
    space, _ = clouds([5, 4])
    assert sorted(typical(space, np.arange(9), 9, 0)) == list(range(9))


def test_uncertain_images_come_from_different_clusters():
    space, truth = clouds([40, 40, 40])
    doubt = np.random.default_rng(1).random(120)
    doubt[truth == 0] += 0.5
    chosen = uncertain(space, np.arange(120), doubt, 12, 0)
    assert len(set(chosen)) == 12 and len(set(truth[chosen])) > 1
    assert doubt[chosen].mean() > doubt.mean() + 0.1
    three = uncertain(space, np.arange(120), np.where(np.arange(120) % 5, 0.1, 0.9 + doubt), 3, 0)
    assert set(truth[three]) == {0, 1, 2}
    for image in three:
        own = [one for one in range(0, 120, 5) if truth[one] == truth[image]]
        assert image == max(own, key=lambda one: doubt[one])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of 40 noisy images of two colors in one folder, with hostile names."""
    folder = tmp_path_factory.mktemp("photos") / "images"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(40):
        pixels = random.integers(0, 60, (16, 16, 3), dtype=np.uint8)
        pixels[..., number % 2] += 150
        name = {0: "=1+1", 1: "<script>alert(1)<", 2: 'a,"b"', 3: "\x1b[31m"}.get(number, "photo")
        Image.fromarray(pixels).save(folder / f"{name}-{number:02d}.png")
    fastssl.convert(folder, folder.parent / "store", no_labels=True, progress=False)
    return folder


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def true_label(path):
    return ["-red", "+green"][int(re.search(r"(\d\d)\.png", path)[1]) % 2]


def test_from_unlabeled_images_to_a_probe(photos, tmp_path):
    out = tmp_path / "to_label.csv"
    done = fastssl.choose(photos.parent / "store", 6, out=out, **SETTINGS)
    rows = read_csv(out)
    assert rows[0] == ["path", "label"] and len(rows) == 7 and done["images"] == 6
    assert all(label == "" for _, label in rows[1:])
    filled = [rows[0], *([path, true_label(path)] for path, _ in rows[1:])]
    with out.open("w", newline="") as file:
        csv.writer(file).writerows(filled)
    with pytest.raises(ConfigError, match=r"has 6 labels that .* has not"):
        fastssl.choose(photos.parent / "store", 3, out=out, **SETTINGS)
    assert read_csv(out) == filled
    store = fastssl.convert(photos, tmp_path / "store", labels=out, test_fraction=0, progress=False)
    names = [store.class_names[one] for one in store.labels("train")[:6]]
    assert names == [true_label(path) for path in store.source_paths("train")[:6]]
    assert (store.labels("train") >= 0).sum() == 6
    probed = fastssl.probe(tmp_path / "store", out=tmp_path / "run", tensorboard=False, **SETTINGS)
    assert probed["heads"][0]["accuracy"] is None  # no image to evaluate on
    predict = fastssl.load(tmp_path / "run").predict
    paths = [str(path) for path in sorted(photos.iterdir())]
    hits = [one.label == true_label(path) for one, path in zip(predict(paths), paths, strict=True)]
    assert np.mean(hits) > 0.9
    again = fastssl.choose(tmp_path / "store", 3, out=out, run=tmp_path / "run")
    assert again["images"] == 3
    rows = read_csv(out)
    assert [label for _, label in rows[1:4]] == [""] * 3 and all(row[1] for row in rows[4:])
    assert not {row[0] for row in rows[1:4]} & {row[0] for row in filled}
    assert len(rows) == 1 + 3 + 6


@pytest.mark.parametrize(("few", "side"), [(2, 224), (1, 96)])
def test_a_few_images_are_shown_large_enough_to_tell_classes_apart(
    tmp_path, monkeypatch, few, side
):
    source = write_flat(tmp_path / "images", 2, size=(300, 300))
    given = {"no_labels": True, "size": 256, "progress": False}
    store = fastssl.convert(source, tmp_path / "store", **given)
    monkeypatch.setattr(to_label, "FEW", few)
    to_label.write_sheet(store, np.arange(2), tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    shown = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    sizes = [Image.open(io.BytesIO(base64.b64decode(one))).size for one in shown]
    assert sizes == [(side, side)] * 2 and f"width: {side}px; height: {side}px" in page


def test_names_become_neither_formulas_nor_html(photos, tmp_path):
    out = tmp_path / "all.csv"
    fastssl.choose(photos.parent / "store", 40, out=out, **SETTINGS)
    page = (tmp_path / "all.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert page.count("<figure>") == 40
    # A path is absolute, so that it cannot begin like a formula; a class name could.
    labels = tmp_path / "labels.csv"
    with labels.open("w", newline="") as file:
        rows = [(str(path), "'=cmd()" if number % 2 else "b") for number, path in
                enumerate(sorted(photos.iterdir())[:10])]  # fmt: skip
        csv.writer(file).writerows([("path", "label"), *rows])
    fastssl.convert(photos, tmp_path / "store", labels=labels, test_fraction=0, progress=False)
    fastssl.choose(tmp_path / "store", 2, out=out, **SETTINGS)
    written = {row[1] for row in read_csv(out)}
    assert written == {"label", "", "b", "'=cmd()"}


def test_label_studio_and_back(photos, tmp_path):
    out = tmp_path / "tasks.json"
    fastssl.choose(photos.parent / "store", 40, out=out, form="labelstudio", **SETTINGS)
    tasks = json.loads(out.read_text())
    assert len(tasks) == 40 and all(set(task) == {"data"} for task in tasks)
    assert tasks[0]["data"]["image"].startswith("/data/local-files/?d=")
    for number, task in enumerate(tasks):  # as Label Studio exports them
        result = [{"type": "choices", "value": {"choices": [true_label(task["data"]["path"])]}}]
        task["annotations"] = [
            {"was_cancelled": True, "result": [{"value": {"choices": ["skipped"]}}]},
            {"was_cancelled": False, "result": result if number < 10 else []},
        ]
        if number % 2:
            del task["data"]["path"]  # a task of the user's own: its image is a local file
    export = tmp_path / "export.json"
    export.write_text(json.dumps(tasks))
    store = fastssl.convert(photos, tmp_path / "a", labels=export, test_fraction=0, progress=False)
    labels, paths = store.labels("train"), store.source_paths("train")
    assert (labels >= 0).sum() == 10
    assert all(store.class_names[labels[i]] == true_label(paths[i]) for i in range(10))
    short = [
        {"image": task["data"]["image"], "label": true_label(task["data"]["image"]), "id": 1}
        for task in tasks[:4]
    ]
    export.write_text(json.dumps(short))
    store = fastssl.convert(photos, tmp_path / "b", labels=export, test_fraction=0, progress=False)
    assert (store.labels("train") >= 0).sum() == 4
    fastssl.choose(tmp_path / "b", 2, out=out, form="labelstudio", **SETTINGS)
    known = [task for task in json.loads(out.read_text()) if "annotations" in task]
    assert len(known) == 4
    export.write_text(json.dumps(known))
    store = fastssl.convert(photos, tmp_path / "c", labels=export, test_fraction=0, progress=False)
    assert (store.labels("train") >= 0).sum() == 4


@pytest.mark.parametrize(
    "content",
    ["{", "{}", '["x"]', '[{"data": {}}]', '[{"data": 7}]', '[{"path": "a", "label": {"x": 1}}]',
     '[{"path": "a", "label": {"choices": ["x", "y"]}}]',
     '[{"data": {"path": "a"}, "annotations": ["x"]}]', '[{"data": {"path": "a"}}]'],
)  # fmt: skip
def test_a_wrong_export_is_refused_in_two_lines(photos, tmp_path, content):
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(fastssl.DataError):
        fastssl.convert(photos, tmp_path / "s", labels=tmp_path / "export.json", progress=False)


def test_impossible_numbers_are_refused(photos, data, tmp_path):
    store = photos.parent / "store"
    with pytest.raises(ConfigError, match="41 images are asked for, and 40"):
        fastssl.choose(store, 41, out=tmp_path / "a.csv", **SETTINGS)
    with pytest.raises(ConfigError, match="are not known"):
        fastssl.choose(store, 4, out=tmp_path / "a.csv", per_class=True, **SETTINGS)
    with pytest.raises(ConfigError, match="10 images are asked for, and 0"):
        fastssl.choose("digits", 1, out=tmp_path / "a.csv", per_class=True, **SETTINGS)
    with pytest.raises(ConfigError, match="format"):
        fastssl.choose(store, 4, out=tmp_path / "a.csv", form="xml", **SETTINGS)
    with pytest.raises(ConfigError, match="the name of the sheet"):
        fastssl.choose(store, 4, out=tmp_path / "a.html", **SETTINGS)
    assert not os.listdir(tmp_path)


def test_more_images_than_k_means_sees_are_refused_with_the_bound(photos, tmp_path, monkeypatch):
    for module in (graph, choose):
        monkeypatch.setattr(module, "SAMPLE", 20, raising=False)
    with pytest.raises(ConfigError, match="asked for, and 20 are the most") as caught:
        fastssl.choose(photos.parent / "store", 21, out=tmp_path / "a.csv", **SETTINGS)
    assert caught.value.fix == "use -n 1 to 20"
    done = fastssl.choose(photos.parent / "store", 20, out=tmp_path / "a.csv", **SETTINGS)
    assert done["images"] == 20


@pytest.mark.parametrize(
    ("left", "fix"),
    [(100, "use -n 1 to 2"), (27, "use -n 1 to 2"), (9, "remove --per-class")],
)
def test_the_bound_for_each_class_is_named(left, fix, monkeypatch):
    monkeypatch.setattr(choose, "SAMPLE", 20, raising=False)
    store = SimpleNamespace(classes=10, path="digits")
    with pytest.raises(ConfigError) as caught:
        choose.checked_count(store, left, 3, per_class=True)
    assert caught.value.fix == fix
    if left > 9:
        assert choose.checked_count(store, left, 2, per_class=True) == 20


def test_images_without_labels_cannot_be_trained_on(photos, tmp_path):
    assert open_store(photos.parent / "store").classes == 0
    with pytest.raises(fastssl.UserError):
        fastssl.train("own", store=str(photos.parent / "store"), out=tmp_path / "run", steps=1)
    with pytest.raises(ConfigError, match="no_labels"):
        fastssl.convert(photos, tmp_path / "s", no_labels=True, test=photos)
