"""Evaluating on another store: the model's preprocessing, classes by name, and what is noted."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fastssl
from fastssl.cli.command import app
from fastssl.errors import ConfigError, DataError
from pipelines.convert import Options, convert
from pipelines.sources import Source, SourceSplit, array_chunks

NAMES = ["red", "green", "blue"]
runner = CliRunner()


def colored(count: int, seed: int, size: int = 16, dark: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return grainy images of three colors that run into each other, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    base = np.array([[150, 110, 110], [110, 150, 110], [110, 110, 150]])[labels]
    base = base + random.normal(0, 20, (count, 3))
    noise = random.normal(0, 30, (count, size, size, 3))
    return ((base[:, None, None] + noise).clip(0, 255) // dark).astype(np.uint8), labels


def write_store(
    path: Path,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    names: list[str] | None = None,
    resize: str = "squash",
    interpolation: str = "bicubic",
) -> Path:
    splits = {}
    for name, (images, labels) in (("train", train), ("test", test)):
        splits[name] = SourceSplit(
            count=len(images),
            size=images.shape[1],
            chunks=lambda images=images, labels=labels: array_chunks(images, labels, "colors"),
            kept=True,
        )
    source = Source(name="colors", class_names=names or NAMES, splits=splits, resize=resize)
    convert(source, path, Options(quality=0, workers=1, interpolation=interpolation))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("colors")
    write_store(folder / "own", colored(60, 0), colored(90, 1))
    settings = {"model": "wrn-10-1", "batch": 15, "steps": 12, "ema": 0.5, "bn_momentum": 0.5}
    settings |= {"eval_every": 12, "labels": "all", "tensorboard": False, "threads": 1}
    store = str(folder / "own")
    fastssl.train("own", algorithm="supervised", store=store, out=folder / "run", **settings)
    assert 0 < fastssl.evaluate(folder / "run")["error"] < 60, "the test tests nothing"
    return folder


def test_a_store_with_other_statistics_is_normalized_as_in_training(
    place: Path, tmp_path: Path
) -> None:
    test = colored(90, 1)
    other = write_store(tmp_path / "other", colored(60, 0, dark=4), test)
    model = fastssl.load(place / "run")
    expected = [one.label for one in model.predict(list(test[0]))]
    words = ["predict", str(place / "run"), str(other), "--jsonl", str(tmp_path / "p.jsonl")]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == expected
    metrics = fastssl.evaluate(place / "run", store=other)
    own = fastssl.evaluate(place / "run")
    assert metrics["error"] == own["error"] and metrics["loss"] == own["loss"]
    labeled = fastssl.label(place / "run", other, tmp_path / "l.csv")
    assert labeled["images"] == 60


def test_classes_are_matched_by_name(place: Path, tmp_path: Path) -> None:
    images, labels = colored(90, 1)
    order = ["blue", "unused", "red", "green"]
    numbers = np.array([order.index(NAMES[label]) for label in labels])
    other = write_store(tmp_path / "o", (images[:30], numbers[:30]), (images, numbers), order)
    own = fastssl.evaluate(place / "run")
    metrics = fastssl.evaluate(place / "run", store=other)
    assert metrics["error"] == own["error"]
    assert metrics["class_accuracy"] == own["class_accuracy"]


def test_classes_without_a_test_image_are_noted(place: Path, tmp_path: Path) -> None:
    images, labels = colored(90, 1)
    some = labels < 2
    other = write_store(tmp_path / "o", (images, labels), (images[some], labels[some]))
    notes = fastssl.evaluate(place / "run", store=other)["notes"]
    assert any("no image of blue" in note for note in notes)


def test_unknown_classes_are_refused_by_name(place: Path, tmp_path: Path) -> None:
    images, labels = colored(90, 1)
    names = ["red", "\x1b[2Jcyan", "blue"]
    other = write_store(tmp_path / "o", (images, labels), (images, labels), names)
    with pytest.raises(DataError, match=r"\\x1b\[2Jcyan") as error:
        fastssl.evaluate(place / "run", store=other)
    assert "red, green, blue" in error.value.fix and "cyan" not in error.value.fix
    with pytest.raises(DataError, match="cyan"):
        fastssl.label(place / "run", other, tmp_path / "l.csv")
    assert not (tmp_path / "l.csv").exists()


def test_images_of_another_size_are_refused(place: Path, tmp_path: Path) -> None:
    large = write_store(tmp_path / "o", colored(30, 0, size=24), colored(30, 1, size=24))
    with pytest.raises(DataError, match="24 x 24") as error:
        fastssl.evaluate(place / "run", store=large)
    assert "--size 16" in error.value.fix


def test_another_store_is_noted_and_so_are_images_that_were_trained_on(
    place: Path, tmp_path: Path
) -> None:
    assert fastssl.evaluate(place / "run")["notes"] == []
    fresh = write_store(tmp_path / "fresh", colored(30, 5), colored(30, 6), resize="crop")
    different, resized = fastssl.evaluate(place / "run", store=fresh)["notes"]
    assert "not the store" in different
    assert resized.endswith("were resized by crop, the model's by squash")
    other = write_store(tmp_path / "o", *[colored(30, 5)] * 2, interpolation="bilinear")
    _, resized = fastssl.evaluate(place / "run", store=other)["notes"]
    assert resized.endswith("were resized by bilinear, the model's by bicubic")
    seen = write_store(tmp_path / "seen", colored(30, 5), colored(60, 0))
    notes = fastssl.evaluate(place / "run", store=seen)["notes"]
    assert any("60 of its 60 test images" in note for note in notes)
    moved = shutil.copytree(place / "run", tmp_path / "run")
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace(str(place / "own"), str(tmp_path / "gone")))
    notes = fastssl.evaluate(moved, store=fresh)["notes"]
    assert any("may have been trained on" in note for note in notes)
    done = runner.invoke(app, ["eval", str(place / "run"), "--store", str(seen)])
    assert "60 of its 60" in done.stderr


def test_eval_prints_accuracy_and_what_is_confused(place: Path) -> None:
    metrics = fastssl.evaluate(place / "run")
    assert metrics["accuracy"] == pytest.approx(100 - metrics["error"])
    counts = np.array(metrics["confusion"])
    assert counts.sum() == 90 and metrics["classes"] == NAMES
    assert 100 * np.trace(counts) / 90 == pytest.approx(metrics["accuracy"])
    done = runner.invoke(app, ["eval", str(place / "run")])
    assert done.exit_code == 0
    row = next(line for line in done.stdout.splitlines() if line.startswith("accuracy"))
    assert f"{metrics['accuracy']:.4g}" in row
    np.fill_diagonal(counts, 0)
    truth, predicted = np.unravel_index(counts.argmax(), counts.shape)
    assert f"{NAMES[truth]}" in done.stdout and f"{NAMES[predicted]}" in done.stdout
    assert f"{counts.max()} of 30" in done.stdout


def test_a_run_in_half_precision_is_evaluated_on_a_cpu(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    text = (run / "config.yaml").read_text()
    assert "precision: fp32" in text
    (run / "config.yaml").write_text(text.replace("precision: fp32", "precision: fp16"))
    assert fastssl.evaluate(run)["error"] == fastssl.evaluate(place / "run")["error"]


def test_best_never_means_last_silently(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    (run / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(DataError, match="no best checkpoint") as error:
        fastssl.load(run)
    assert "last" in error.value.fix
    assert fastssl.load(run, "last").classes == NAMES
    with pytest.raises(ConfigError, match="no checkpoint called"):
        fastssl.load(run, "first")
