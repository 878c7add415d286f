"""Cross-fitting: each label is compared with a model that has not seen it."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fastssl
from fastssl.cli.command import app
from fastssl.engine.build_data import make_data
from fastssl.errors import ConfigError
from fastssl.inference import cross_fit
from fastssl.inference.predictor import Predictor
from fastssl.inference.pseudo_label import pseudo_label
from fastssl.report.load import read_all
from pipelines.store.store import Store
from tests import runs
from tests.small_stores import digits_without_test

SETTINGS = {
    "algorithm": "flexmatch",
    "model": "wrn-10-1",
    "batch": 20,
    "ratio": 3,
    "lr": 0.05,
    "ema": 0.9,
    "bn_momentum": 0.2,
    "flip": False,
    "padding": 1,
    "log_every": 1000,
    "threads": 1,
    "loader_threads": 1,
    "tensorboard": False,
    "compile": "off",
}
SHORT = {**SETTINGS, "steps": 8, "checkpoint_every": 3}


@pytest.fixture(scope="module")
def store(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("stores")
    (folder / "digits").symlink_to(data / "digits")
    return digits_without_test(folder / "own")


def train(out: Path, store: Store, **settings: Any) -> Path:
    fastssl.train("own", out=out, store=str(store.path), **{**SHORT, "labels": 20, **settings})
    return out


@pytest.mark.parametrize(
    ("quality", "labels", "steps", "accuracies"),
    [
        ("poor", 20, 40, (0.2, 0.7)),
        pytest.param("good", 40, 100, (0.8, 1), marks=pytest.mark.slow),
    ],
)
def test_no_more_is_expected_than_is_true(
    quality: str,
    labels: int,
    steps: int,
    accuracies: tuple[float, float],
    store: Store,
    tmp_path: Path,
) -> None:
    # Only the lower end must hold: the run learned from more labels than the models, so that its
    # pseudo-labels may be better than the upper end.
    run = train(tmp_path / "r", store, labels=labels, steps=steps)
    truth, estimated = store.labels("train"), 0
    for floor in (0, 0.6, 0.95):
        found = pseudo_label(Predictor(run), store, floor)
        done = fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=3, floor=floor)
        result = done["precision"]
        if not found.trusted.any():
            assert quality == "poor" and floor == 0.95 and "no image is trusted" in done["expected"]
            continue
        true = float((found.label == truth[found.indices])[found.trusted].mean())
        assert result["low"] <= true, (floor, result, true)
        assert result["low"] < result["accuracy"] < result["high"] or floor
        assert accuracies[0] < result["accuracy"] < accuracies[1], "not the model to test with"
        assert result["held_out"] == labels and result["models"] == (2 if labels == 20 else 3)
        text = f"cross-fitted over {result['models']} models on {labels} labels"
        assert text in done["expected"]
        assert bool(done["warnings"]) == (result["low"] < 0.8)
        estimated += 1
    assert estimated >= 2


def test_a_withheld_label_is_that_of_an_unlabeled_image(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "r", store, labels=50, steps=1)
    withheld = []

    def compared(model: Predictor, store: Store, floor: float, **among: Any) -> Any:
        found = pseudo_label(model, store, floor, **among)
        if among:
            split = make_data(model.resolved, store, 1)[0]
            assert not np.isin(found.indices, split.labeled).any(), "a model was trained on them"
            assert np.isin(found.indices, split.unlabeled).all()
            counts = np.bincount(store.labels("train")[split.labeled], minlength=10)
            assert counts.min() == counts.max() >= 3, "of every class as many are left"
            withheld.append(found.indices)
        return found

    monkeypatch.setattr(cross_fit, "pseudo_label", compared)
    fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=3, floor=0)
    labeled = make_data(Predictor(run).resolved, store, 1)[0].labeled
    assert len(withheld) == 3 and sorted(np.concatenate(withheld)) == labeled.tolist()


def die_in_the_second_model() -> None:
    seen = []

    def die() -> None:
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    runs.before_step(5, die)


def test_a_killed_cross_fit_continues(store: Store, tmp_path: Path) -> None:
    run = train(tmp_path / "a" / "r", store)
    other = shutil.copytree(run, tmp_path / "b" / "r")
    words = ["--cross-fit", "2", "--floor", "0.01", "--out", str(tmp_path / "p.csv")]
    command = ["label", str(run), str(store.path), *words]
    assert runs.ended(runs.command(*command, before=die_in_the_second_model)) == -signal.SIGKILL
    (place,) = (run / "cross-fit").iterdir()
    files = (place / "fold-0" / "checkpoints").iterdir()
    before = {file: file.stat().st_mtime_ns for file in files}
    assert not (place / "fold-1" / "summary.json").exists()
    done = fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    assert all(file.stat().st_mtime_ns == time for file, time in before.items())
    lines = (place / "fold-1" / "log.txt").read_text()
    assert "steps 4 to 8" in lines, "the second model began anew"
    whole = fastssl.label(other, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    assert whole["precision"] == done["precision"] is not None
    for fold in ("fold-0", "fold-1"):
        runs.assert_same_run(other / "cross-fit" / place.name / fold, place / fold)
    assert [one.path for one in read_all([tmp_path / "a"]).runs] == [run], "folds are no runs"


def test_code_that_a_fold_names_is_trusted_no_more_than_the_run(
    store: Store, tmp_path: Path
) -> None:
    run = train(tmp_path / "r", store)
    fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    (place,) = (run / "cross-fit").iterdir()
    code, config = tmp_path / "net.py", place / "fold-0" / "config.yaml"
    code.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    config.write_text(config.read_text().replace("model: wrn-10-1", f"model: {code}:net"))
    with pytest.raises(ConfigError, match="trust_code"):
        fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    assert not (tmp_path / "executed").exists()


def test_a_fold_shows_one_line_and_its_progress_and_its_log_has_the_rest(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "r", store, log_every=4)
    capfd.readouterr()
    fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    lines = capfd.readouterr().err.splitlines()
    shown = [line.split(":")[0].split("  ")[0] for line in lines]
    steps = ["step 4/8", "step 8/8"]
    assert shown == ["cross-fitting", "model 1 of 2", *steps, "model 2 of 2", *steps]
    logs = [path.read_text() for path in run.glob("cross-fit/*/fold-?/log.txt")]
    assert len(logs) == 2
    assert all("next: fastssl" in log and " learn " in log for log in logs)
    train(tmp_path / "other", store)
    assert "next: fastssl" in capfd.readouterr().err


def test_other_inputs_get_other_models(store: Store, tmp_path: Path) -> None:
    run = train(tmp_path / "r", store)
    fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    fastssl.train(
        "own", out=run, resume=True, store=str(store.path), **{**SHORT, "labels": 20, "steps": 10}
    )
    fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=2, floor=0.01)
    steps = [
        json.loads((place / "fold-0" / "summary.json").read_text())["steps"]
        for place in (run / "cross-fit").iterdir()
    ]
    assert sorted(steps) == [8, 10]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"labels": 10}, "no class has two labels"),
        ({"validation": 50}, "holds out validation images"),
        ({"algorithm": "fullysupervised"}, "needs every label"),
    ],
)
def test_where_no_label_can_be_withheld_the_reason_is_given(
    settings: dict[str, Any], reason: str, store: Store, tmp_path: Path
) -> None:
    run = train(tmp_path / "r", store, **{**settings, "steps": 1})
    usable, why = cross_fit.withholdable(Predictor(run), store)
    assert not len(usable) and reason in why
    if "algorithm" not in settings:  # it leaves no unlabeled image in this store
        with pytest.raises(ConfigError, match=f"over 3 models is not possible: .*{reason}"):
            fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=3, floor=0.01)
    assert not (run / "cross-fit").exists()


def test_the_command_offers_it_where_nothing_else_is_held_out(
    store: Store, data: Path, tmp_path: Path
) -> None:
    words = ["--floor", "0.01", "--out", str(tmp_path / "p.csv")]
    few = train(tmp_path / "few", store, labels=10, steps=1)
    done = CliRunner().invoke(app, ["label", str(few), str(store.path), *words])
    assert "cross-fitting is not possible: no class has two labels" in done.stdout
    run = train(tmp_path / "r", store, steps=1)
    done = CliRunner().invoke(app, ["label", str(run), str(store.path), *words])
    assert "not estimated: no image with a held-out label" in done.stdout
    assert "type --cross-fit 2, which trains 2 models of about 0:0" in done.stdout
    with pytest.raises(ConfigError) as caught:
        fastssl.label(run, store.path, tmp_path / "p.csv", cross_fit=1)
    assert str(caught.value).startswith("cross_fit=1 leaves no fold to train on")
    assert caught.value.fix == "type cross_fit=3"
    with pytest.raises(ConfigError, match="was trained on another store"):
        fastssl.label(run, data / "digits", tmp_path / "p.csv", cross_fit=2, floor=0.01)
