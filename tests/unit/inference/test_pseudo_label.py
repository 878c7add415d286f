"""Pseudo-labels: of the right images, by the right thresholds, and fit to be converted again."""

import csv
import html
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fastssl
from fastssl.algorithms.common import cpl
from fastssl.cli.command import app
from fastssl.config.resolve import load
from fastssl.errors import ConfigError, DataError
from fastssl.inference import contact_sheet, pseudo_label
from fastssl.inference.predictor import Predictor
from pipelines.store.store import Store, open_store
from tests.image_files import noise, write_flat, write_folder


@pytest.fixture(scope="module")
def model(trained: Path) -> Predictor:
    return fastssl.load(trained)


@pytest.fixture(scope="module")
def pseudo_labels(model: Predictor, data: Path) -> pseudo_label.PseudoLabels:
    return pseudo_label.pseudo_label(model, open_store(data / "digits"))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_lines_hold_path_label_confidence_threshold_and_trust(
    trained: Path, model: Predictor, data: Path, tmp_path: Path
) -> None:
    done = fastssl.label(trained, data / "digits", tmp_path / "p.csv", floor=0)
    rows = read(tmp_path / "p.csv")
    assert list(rows[0]) == ["path", "label", "confidence", "threshold", "trusted", "source"]
    assert len(rows) == done["images"] == 1437 - 400, "labeled images get no pseudo-label"
    levels = cpl.thresholds(model.content["state"], model.resolved.settings).tolist()
    assert max(levels) > 0, "no class has a threshold: the test tests nothing"
    for row in rows:
        level = levels[model.classes.index(row["label"])]
        assert float(row["threshold"]) == pytest.approx(level, abs=1e-6)
        assert (row["trusted"] == "yes") == (float(row["confidence"]) >= level)
    assert done["trusted"] == sum(row["trusted"] == "yes" for row in rows)
    store = open_store(data / "digits")
    place = {path: number for number, path in enumerate(store.source_paths("train"))}
    for row in rows[:5]:
        assert model.predict(store.image("train", place[row["path"]])).label == row["label"]


def test_freematch_labels_by_its_learned_thresholds(model: Predictor) -> None:
    resolved = load("digits", ["algorithm=freematch", "algo.highest=0.8"])
    averages = torch.tensor([0.9, *torch.linspace(0.1, 0.2, 10).tolist(), *[0.1] * 10])
    learned = SimpleNamespace(
        classes=model.classes, resolved=resolved, content={"state": {"averages": averages}}
    )
    levels = pseudo_label.class_thresholds(learned, 0)
    assert levels == pytest.approx(0.8 * np.linspace(0.1, 0.2, 10) / 0.2)
    floored = pseudo_label.class_thresholds(learned, 0.6)
    assert floored == pytest.approx(np.maximum(levels, 0.6)) and floored.max() > 0.6


def untrained(model: Predictor, *overrides: str, **state: torch.Tensor) -> SimpleNamespace:
    resolved = load("digits", list(overrides))
    return SimpleNamespace(
        run="runs/a", classes=model.classes, resolved=resolved, content={"state": state}
    )


@pytest.mark.parametrize("state", [{}, {"counts": torch.zeros(3)}])
def test_a_state_that_does_not_fit_is_refused(
    model: Predictor, state: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(DataError, match="no thresholds of flexmatch for 10 classes"):
        pseudo_label.class_thresholds(untrained(model, **state), 0)


def test_no_threshold_is_below_the_floor(model: Predictor) -> None:
    for overrides, floor, level in (
        (["algorithm=uda"], 0, 0.8),
        (["algorithm=uda"], 0.95, 0.95),
        (["algorithm=uda", "algo.threshold=0.99"], 0.95, 0.99),
        (["algorithm=supervised"], 0.7, 0.7),
    ):
        levels = pseudo_label.class_thresholds(untrained(model, *overrides), floor)
        assert levels.tolist() == [level] * 10
    soft = untrained(model, "algorithm=softmatch", mean=torch.tensor(0.75))
    assert pseudo_label.class_thresholds(soft, 0).tolist() == [0.75] * 10


def test_nothing_is_trusted_without_a_threshold(model: Predictor) -> None:
    with pytest.raises(ConfigError, match="has no thresholds"):
        pseudo_label.class_thresholds(untrained(model, "algorithm=supervised"), 0)
    for floor in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="floor"):
            pseudo_label.class_thresholds(untrained(model), floor)


def test_filters_leave_lines_out(trained: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    digits = data / "digits"
    done = fastssl.label(trained, digits, out, min_confidence=0.4)
    assert all(float(row["confidence"]) >= 0.4 for row in read(out))
    assert 0 < done["written"] < done["images"]
    fastssl.label(trained, digits, out, trusted_only=True, given=True, floor=0)
    kinds = [(row["trusted"], row["source"]) for row in read(out)]
    assert kinds.count(("given", "given")) == 400
    assert set(kinds) == {("given", "given"), ("yes", "pseudo")}
    before = out.read_bytes()
    for wrong in ({"min_confidence": 2}, {"floor": 2}, {"sheet": tmp_path / "sheet.pdf"}):
        with pytest.raises(ConfigError, match=r"min_confidence|floor|sheet\.pdf"):
            fastssl.label(trained, digits, out, **wrong)
    assert out.read_bytes() == before and list(tmp_path.iterdir()) == [out]


def own_folder(path: Path) -> list[Path]:
    """Write images with names that need quoting, none of them in class folders."""
    path.mkdir()
    random = np.random.default_rng(0)
    names = [f'odd, "{place}"\n<b>.png' if place == 1 else f"{place}.png" for place in range(24)]
    for place, name in enumerate(names):
        photo = np.asarray(noise((16, 16), random)) // 4
        photo[:, :, place % 2] += 150
        Image.fromarray(photo.astype(np.uint8)).save(path / name)
    return [path / name for name in names]


def test_pseudo_labels_go_back_through_convert(tmp_path: Path) -> None:
    paths = own_folder(tmp_path / "mine")
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[path.name, "rg"[i % 2]] for i, path in enumerate(paths[2:8])])
    test = tmp_path / "test"
    for place, path in enumerate(paths[8:12]):
        (test / "rg"[place % 2]).mkdir(parents=True, exist_ok=True)
        (test / "rg"[place % 2] / f"{place}.png").write_bytes(path.read_bytes())
    options = {"formats": ("dali",), "test": test, "progress": False}
    first = tmp_path / "first"
    fastssl.convert(tmp_path / "mine", first, labels=tmp_path / "labels.csv", **options)
    tiny = {"model": "wrn-10-1", "batch": 4, "ratio": 2, "steps": 3, "eval_every": 3}
    tiny |= {"labels": "all", "tensorboard": False, "threads": 1}
    fastssl.train("own", store=str(first), out=tmp_path / "run", **tiny)
    sheet = tmp_path / "sheet.html"
    pseudo = tmp_path / "pseudo.csv"
    fastssl.label(tmp_path / "run", first, pseudo, given=True, sheet=sheet)
    written = {row["path"]: row["label"] for row in read(pseudo)}
    assert len(written) == 24
    again: Store = fastssl.convert(tmp_path / "mine", tmp_path / "again", labels=pseudo, **options)
    labels = [again.class_names[label] for label in again.labels("train")]
    assert dict(zip(again.source_paths("train"), labels, strict=True)) == written
    text = sheet.read_text()
    assert "<b>" not in text and html.escape("<b>.png") in text


def test_the_sheet_shows_both_ends_of_every_class(
    pseudo_labels: pseudo_label.PseudoLabels, tmp_path: Path
) -> None:
    contact_sheet.write_sheet(pseudo_labels, tmp_path / "s.html")
    text = (tmp_path / "s.html").read_text()
    assert text.count("<h2>") == 10
    number = int(np.bincount(pseudo_labels.label).argmax())
    most, least = contact_sheet.ends(pseudo_labels, number)
    own = pseudo_labels.confidence[pseudo_labels.label == number]
    assert pseudo_labels.confidence[most].max() == own.max()
    assert pseudo_labels.confidence[least].min() == own.min()
    assert not set(most) & set(least)
    contact_sheet.write_sheet(pseudo_labels, tmp_path / "s.png")
    with Image.open(tmp_path / "s.png") as photo:
        assert photo.size[0] > 1000
    with pytest.raises(ConfigError, match="contact sheet"):
        contact_sheet.write_sheet(pseudo_labels, tmp_path / "s.pdf")


@pytest.mark.parametrize("apart", [False, True])
def test_the_printed_line_keeps_test_images_that_lie_in_the_folder(
    tmp_path: Path, apart: bool
) -> None:
    base = tmp_path / "all"
    folder = write_folder(base / "it's mine", classes=2, per_class=12, size=(16, 16))
    unlabeled = write_flat((tmp_path if apart else base) / "more", count=6, size=(16, 16))
    given = {"test_fraction": 0.25, "size": 16, "interpolation": ["bicubic", "bilinear"][apart]}
    store = fastssl.convert(folder, tmp_path / "a b", unlabeled=unlabeled, progress=False, **given)
    tiny = {"model": "wrn-10-1", "batch": 4, "ratio": 2, "steps": 3, "eval_every": 3}
    tiny |= {"labels": "all", "tensorboard": False, "threads": 1}
    fastssl.train("own", store=str(store.path), out=tmp_path / "run", **tiny)
    out = tmp_path / "p.csv"
    words = ["label", str(tmp_path / "run"), str(store.path), "--out", str(out)]
    done = CliRunner().invoke(app, [*words, "--trusted", "--given", "--floor", "0"])
    assert done.exit_code == 0, done.output
    printed = done.stdout
    (line,) = [one for one in printed.splitlines() if one.startswith("next: fastssl ")]
    done = CliRunner().invoke(app, shlex.split(line)[2:])
    assert done.exit_code == 0, done.output
    again = open_store(f"{store.path}-2")
    assert set(again.source_paths("test")) == set(store.source_paths("test"))
    assert again.manifest.interpolation == store.manifest.interpolation
    listed = {row["path"] for row in read(out)}
    assert set(again.source_paths("train")) == (
        listed if apart else set(store.source_paths("train"))
    )
    assert {row["source"] for row in read(out)} == {"given", "pseudo"}
    assert ("leaves out images without a label" in printed) == apart
