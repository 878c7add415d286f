"""Predicting prepares images exactly as evaluation does, from whatever they are handed as."""

import csv
import io
import json
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fastssl
from fastssl.cli.command import app
from fastssl.distributed.collectives import Ranks
from fastssl.engine import checkpoint, evaluation
from fastssl.errors import ConfigError, DataError
from fastssl.inference import trained_model
from fastssl.inference.inputs import files, to_image
from fastssl.inference.prediction_files import predict
from fastssl.inference.predictor import Predictor, Preprocessing
from pipelines.convert import Options, convert
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.sources import Source, SourceSplit, array_chunks
from pipelines.store.store import Store, open_store
from tests.process_output import PATIENCE
from tests.runs import whole_content

runner = CliRunner()


@pytest.fixture(scope="module")
def model(trained: Path) -> Predictor:
    return fastssl.load(trained)


@pytest.fixture(scope="module")
def digits(data: Path) -> Store:
    return open_store(data / "digits")


@pytest.fixture
def photos(tmp_path: Path, digits: Store) -> Path:
    """The first test images of the digits as files, by their index."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for place in range(30):
        Image.fromarray(np.asarray(digits.image("test", place))).save(folder / f"{place:03d}.png")
    return folder


def evaluated(trained: Path, digits: Store) -> torch.Tensor:
    """Return the logits that the training loop evaluates."""
    model = fastssl.load(trained)
    batches = EvaluationBatches(digits, "test", np.arange(360), size=(16, 16), batch=100)
    with batches:
        return evaluation.predict_split(model.model, batches, model.device, Ranks())[0]


def test_a_store_gives_the_predictions_of_evaluation_to_the_bit(
    trained: Path, model: Predictor, digits: Store
) -> None:
    logits = evaluated(trained, digits)
    ours = np.concatenate(list(model.store(digits, "test", np.arange(360))))
    assert np.array_equal(ours, logits.numpy())
    assert len(set(ours.argmax(axis=1))) > 3, "the model says one thing of all: nothing is tested"


def test_the_images_of_a_raw_store_give_the_predictions_of_evaluation(
    trained: Path, model: Predictor, digits: Store, tmp_path: Path
) -> None:
    logits = evaluated(trained, digits).numpy()
    paths = []
    for place in range(360):
        paths.append(str(tmp_path / f"{place:03d}.png"))
        Image.fromarray(np.asarray(digits.image("test", place))).save(paths[-1])
    ours = [outcome.logits for outcome in model.files(paths)]
    assert np.array_equal(np.stack(ours), logits)


def colored(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of three colours that run into each other, with grain, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    base = np.array([[150, 110, 110], [110, 150, 110], [110, 110, 150]])[labels]
    base = base + random.normal(0, 20, (count, 3))
    noise = random.normal(0, 30, (count, 40, 40, 3))
    return (base[:, None, None] + noise).clip(0, 255).astype(np.uint8), labels


def test_the_originals_of_a_jpeg_store_are_judged_like_the_store(tmp_path: Path) -> None:
    splits = {}
    for seed, (name, count) in enumerate((("train", 60), ("test", 201))):
        images, labels = colored(count, seed)
        splits[name] = SourceSplit(
            count, 32, lambda images=images, labels=labels: array_chunks(images, labels, "colors")
        )
    source = Source(name="colors", class_names=["r", "g", "b"], splits=splits, resize="crop")
    convert(source, tmp_path / "store", Options(formats=("dali",), quality=90, workers=1))
    settings = {"model": "wrn-10-1", "batch": 15, "steps": 10, "ema": 0.5, "bn_momentum": 0.5}
    settings |= {"eval_every": 10, "labels": "all", "tensorboard": False, "threads": 1}
    store = str(tmp_path / "store")
    fastssl.train("own", algorithm="supervised", store=store, out=tmp_path / "run", **settings)
    error = fastssl.evaluate(tmp_path / "run")["error"]
    pseudo_labels = fastssl.load(tmp_path / "run").predict(list(images))
    wrong = [
        pseudo_label.label != "rgb"[label]
        for pseudo_label, label in zip(pseudo_labels, labels, strict=True)
    ]
    assert 0 < error < 60, "nothing or all was learnt: the test tests nothing"
    assert abs(100 * np.mean(wrong) - error) <= 0.5


@pytest.mark.parametrize("method", ["bicubic", "bilinear"])
def test_an_image_is_resized_as_those_of_the_store_were(tmp_path: Path, method: str) -> None:
    images, labels = colored(12, 0)
    split = SourceSplit(12, 32, lambda: array_chunks(images, labels, "colors"))
    splits = {"train": split, "test": split}
    source = Source(name="colors", class_names=["r", "g", "b"], splits=splits, resize="crop")
    convert(source, tmp_path / "store", Options(quality=0, workers=1, interpolation=method))
    store = open_store(tmp_path / "store")
    settings = {"model": "wrn-10-1", "batch": 2, "steps": 1, "labels": "all", "threads": 1}
    settings |= {"algorithm": "supervised", "tensorboard": False, "store": str(store.path)}
    fastssl.train("own", out=tmp_path / "run", **settings)
    model = fastssl.load(tmp_path / "run")
    assert model.preprocessing.interpolation == method
    pixels = model.preprocessing.pixels(Image.fromarray(images[5]))
    np.testing.assert_array_equal(pixels, store.image("test", 5))


def test_a_checkpoint_of_an_earlier_version_means_bicubic() -> None:
    content = whole_content(1, {})
    assert "interpolation" not in content["preprocessing"]
    assert Preprocessing.of(content).interpolation == "bicubic"


def test_one_image_is_the_same_image_in_every_form(
    model: Predictor, digits: Store, tmp_path: Path
) -> None:
    pixels = np.array(digits.image("test", 3))
    path = tmp_path / "digit.png"
    Image.fromarray(pixels).save(path)
    forms = [
        path,
        str(path),
        Image.open(path),
        pixels,
        pixels.transpose(2, 0, 1),
        pixels.astype(np.float32) / 255,
        torch.from_numpy(pixels),
        torch.from_numpy(pixels).permute(2, 0, 1).float() / 255,
        pixels[:, :, 0],
    ]
    found = [model.predict(form) for form in forms]
    assert all(one == found[0] for one in found)
    assert found[0].label == found[0].top5[0][0]
    assert found[0].probability == found[0].top5[0][1] == max(share for _, share in found[0].top5)
    listed = model.predict(forms)
    assert [one.label for one in listed] == [found[0].label] * len(forms)
    assert len(model.predict(np.stack([pixels, pixels]))) == 2
    assert model.predict([]) == []


def test_a_network_that_does_not_fit_takes_no_memory(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("wrn-10-1", "wrn-10-20"))
    built, build = [], trained_model.build_model

    def watched(resolved: Any, classes: int, device: Any, size: Any) -> Any:
        built.append(device.device.type)
        return build(resolved, classes, device, size)

    monkeypatch.setattr(trained_model, "build_model", watched)
    with pytest.raises(DataError, match="does not fit"):
        fastssl.load(run)
    assert built == ["meta"]


def test_features_are_those_before_the_classifier(model: Predictor, digits: Store) -> None:
    pixels = np.array(digits.image("test", 3))
    features = model.features([pixels, pixels])
    assert features.shape == (2, 64)
    logits = model.model.classifier(torch.from_numpy(features))
    expected = next(iter(model.store(digits, "test", np.array([3]))))
    assert np.allclose(logits.detach().numpy()[0], expected[0], atol=1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        "no/such/file.png",
        3,
        np.zeros((5, 5, 7), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.full((4, 4, 3), 7.0),
        np.full((4, 4, 3), np.nan),
        np.zeros((4, 4, 3), np.int64),
    ],
)
def test_what_is_no_image_is_refused(bad: object) -> None:
    with pytest.raises(DataError):
        to_image(bad)


def test_files_folders_globs_and_lists_are_found(photos: Path) -> None:
    inner = photos / "inner"
    inner.mkdir()
    (photos / "000.png").rename(inner / "deep.PNG")
    (photos / "notes.txt").write_text("not an image")
    (photos / "phone.HEIC").write_text("a format that Pillow does not read")
    notes: list[str] = []
    everything = list(files([str(photos)], [], notes))
    assert ["1 HEIC" in notes[0], "1 .txt" in notes[1], len(notes)] == [True, True, 2]
    assert len(everything) == 30 and str(inner / "deep.PNG") in everything
    first_nine = [f"{photos}/00{i}.png" for i in range(1, 10)]
    assert list(files([f"{photos}/00?.png"], [], [])) == first_nine
    assert list(files(["-"], ["a.png\n", "\n", "b c.png\r\n"], [])) == ["a.png", "b c.png"]
    assert list(files(["missing.png", "none*.png"], [], [])) == ["missing.png", "none*.png"]


def bomb() -> bytes:
    """Return the head of a PNG that says it has 10^10 pixels."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", len(head))
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + struct.pack(">I", 0)
        + b"IEND"
        + struct.pack(">I", zlib.crc32(b"IEND"))
    )


def test_bad_files_are_listed_and_the_rest_is_done(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    (photos / "bomb.png").write_bytes(bomb())
    (photos / "text.jpg").write_text("hello")
    (photos / "empty.gif").write_bytes(b"")
    out, lines = tmp_path / "out" / "g.csv", tmp_path / "g.jsonl"
    words = ["predict", str(trained), str(photos), "gone.png", "--csv", str(out)]
    done = runner.invoke(app, [*words, "--jsonl", str(lines)])
    assert done.exit_code == 0, done.output
    for name in ("bomb.png", "text.jpg", "empty.gif", "gone.png"):
        assert f"{name}: " in done.stderr
    assert "pixels" in next(line for line in done.stderr.splitlines() if "bomb.png" in line)
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    objects = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == len(objects) == 30
    for row, content in zip(rows, objects, strict=True):
        assert row["path"] == content["path"] and row["label"] == content["label"]
        assert json.loads(row["top5"])[0][0] == row["label"]
        assert abs(float(row["probability"]) - content["probability"]) < 1e-6
    assert runner.invoke(app, [*words, "--strict"]).exit_code == 3


def test_probabilities_have_a_column_each(trained: Path, digits: Store, tmp_path: Path) -> None:
    out, lines = tmp_path / "p.csv", tmp_path / "p.jsonl"
    words = ["predict", str(trained), str(digits.path), "--probabilities"]
    done = runner.invoke(app, [*words, "--csv", str(out), "--jsonl", str(lines)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    objects = [json.loads(line) for line in lines.read_text().splitlines()]
    for row, content in zip(rows, objects, strict=True):
        shares = {name: float(row[f"p({name})"]) for name in map(str, range(10))}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert max(shares, key=shares.__getitem__) == row["label"]
        assert content["probabilities"] == pytest.approx(shares, abs=1e-6)
    assert isinstance(runner.invoke(app, words).exception, ConfigError)


def test_names_are_neither_formulas_nor_escape_sequences(
    model: Predictor, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    (photos / "000.png").rename("=cmd.png")
    classes = ['=HYPERLINK("x")', *model.classes[1:]]
    named = Predictor.__new__(Predictor)
    vars(named).update(vars(model), classes=classes)
    bad = "\x1b]0;x\x07.png"
    tally = predict(
        named, ["=cmd.png", *map(str, photos.glob("0*.png")), bad], table=tmp_path / "p"
    )
    rows = list(csv.reader(io.StringIO((tmp_path / "p").read_text())))
    assert rows[1][0] == "'=cmd.png"
    assert not [cell for row in rows[1:] for cell in row if cell[0] in "=+-@"]
    assert any(row[1].startswith("'=HYPER") for row in rows[1:]), "no image got that label"
    assert tally.bad[0]["path"] == bad


def test_csv_on_stdout_is_csv_alone(trained: Path, photos: Path) -> None:
    listed = "\n".join(map(str, sorted(photos.iterdir())[:4]))
    done = runner.invoke(app, ["predict", str(trained), "-", "--csv", "-"], input=listed)
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == 4
    assert "4 images" in done.stderr


def test_a_store_is_predicted_split_by_split(trained: Path, digits: Store) -> None:
    words = ["predict", str(trained), str(digits.path), "--json"]
    done = json.loads(runner.invoke(app, words).stdout)
    assert done["images"] == 360 == sum(row["images"] for row in done["labels"])
    error = runner.invoke(app, [*words, "--split", "nothing"]).exception
    assert isinstance(error, ConfigError) and "no split" in str(error)


def test_nothing_readable_is_an_error(model: Predictor) -> None:
    with pytest.raises(DataError, match="no image could be read"):
        predict(model, ["gone.png"])
    with pytest.raises(DataError, match="not the folder of a run"):
        fastssl.load("no/such/run")


@pytest.mark.parametrize(("height", "width"), [(64, 8), (8, 64), (8, 8)])
def test_a_store_of_another_size_on_either_side_is_refused(height: int, width: int) -> None:
    model = Predictor.__new__(Predictor)  # the size is looked at before anything else
    third = (0.5, 0.5, 0.5)
    model.preprocessing = Preprocessing((16, 16), third, third, 16, "squash", "bilinear")
    held = SimpleNamespace(height=height, width=width)
    model.content = {"store": "the fingerprint of another"}
    store = SimpleNamespace(path="small", splits={"test": held}, matches=lambda saved: False)
    with pytest.raises(DataError, match=f"{height} x {width} pixels") as error:
        next(model.store(store, "test", np.arange(1)))
    assert error.value.fix.endswith("--size 16 --resize squash --interpolation bilinear")


def test_a_skipped_checkpoint_is_reported_on_stderr_and_leaves_stdout_to_json(
    trained: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(trained, tmp_path / "run")
    newest = out / "checkpoints" / "step-00009999.ckpt"
    newest.write_bytes(b"damaged")
    done = subprocess.run(
        [sys.executable, "-m", "fastssl", "eval", str(out), "--checkpoint", "last", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checkpoint"] == "last"
    assert f"skipped: {newest}" in done.stderr


def test_a_model_whose_outputs_are_not_finite_predicts_nothing(
    trained: Path, digits: Store, tmp_path: Path
) -> None:
    out = shutil.copytree(trained, tmp_path / "run")
    best = out / "checkpoints" / checkpoint.BEST
    content = checkpoint.read(best)
    content["ema"]["classifier.bias"][:] = torch.nan
    best.write_bytes(checkpoint.pack(content))
    for action in (
        lambda: fastssl.evaluate(out, store=digits.path),
        lambda: fastssl.load(out).predict(np.zeros((16, 16, 3), np.uint8)),
        lambda: fastssl.label(out, digits.path, tmp_path / "p.csv"),
    ):
        with pytest.raises(DataError, match="not finite"):
            action()
    assert not (tmp_path / "p.csv").exists()
