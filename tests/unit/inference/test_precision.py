"""The expected precision of pseudo-labels: an interval that holds, or none at all."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binomtest

import fastssl
from fastssl.inference import precision
from fastssl.inference.label import warnings_on
from fastssl.inference.predictor import Predictor
from fastssl.inference.pseudo_label import pseudo_label
from pipelines.store.store import open_store

SETTINGS = {
    "algorithm": "flexmatch",
    "model": "wrn-10-1",
    "batch": 20,
    "ratio": 3,
    "lr": 0.05,
    "ema": 0.9,
    "bn_momentum": 0.2,
    "log_every": 1000,
    "threads": 1,
    "loader_threads": 1,
    "tensorboard": False,
    "compile": "off",
}


@pytest.mark.parametrize(
    ("quality", "labels", "steps", "accuracies"),
    [
        ("poor", 20, 40, (0.2, 0.6)),
        ("middling", 40, 100, (0.6, 0.93)),
        pytest.param("good", 100, 400, (0.93, 1), marks=pytest.mark.slow),
    ],
)
def test_the_interval_contains_the_true_precision(
    quality: str,
    labels: int,
    steps: int,
    accuracies: tuple[float, float],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each kind of processor trains other models. One interval of 20 may miss at the level 0.95.
    monkeypatch.setattr(precision, "LEVEL", 0.999)
    often = {"eval_every": 40, "eval_every_late": 40}
    fastssl.train("digits", out=tmp_path / "r", labels=labels, steps=steps, **SETTINGS, **often)
    store = open_store(data / "digits")
    truth = store.labels("train")
    estimated = 0
    for checkpoint in ("best", "last"):
        model = Predictor(tmp_path / "r", checkpoint)
        for floor in (0, 0.6, 0.95):
            found = pseudo_label(model, store, floor)
            trusted = found.trusted
            result = precision.estimate_precision(model, store, found.thresholds, trusted)
            if isinstance(result, str):
                assert floor == 0.95 and quality == "poor"
                continue
            assert accuracies[0] < result.accuracy <= accuracies[1], "not the model to test with"
            true = float((found.label == truth[found.indices])[trusted].mean())
            assert result.low <= true <= result.high, (quality, checkpoint, floor, result, true)
            assert result.high - result.low < 0.4 or result.trusted < 50
            assert bool(warnings_on(result)) == (result.low < precision.POOR)
            estimated += 1
    assert estimated >= 4


def test_validation_images_are_used_before_test_images(data: Path, tmp_path: Path) -> None:
    often = {"eval_every": 4, "eval_every_late": 4}
    short = {**SETTINGS, "labels": 40, "steps": 4, **often}
    fastssl.train("digits", out=tmp_path / "r", validation=50, **short)
    store = open_store(data / "digits")
    held = precision.held_out_images(Predictor(tmp_path / "r"), store)
    assert held is not None and held.name == "validation" and held.chose
    assert len(held.indices) == 50 and (held.labels == store.labels("train")[held.indices]).all()
    done = fastssl.label(tmp_path / "r", data / "digits", tmp_path / "p.csv", floor=0)
    assert done["precision"]["name"] == "validation" and done["images"] == 1437 - 50 - 40
    assert done["warnings"], "a model of four steps is poor"
    # Validation images of a store with pseudo-labels may have labels that a model chose.
    store.manifest = store.manifest.model_copy(update={"pseudo_labels": 3})
    held = precision.held_out_images(Predictor(tmp_path / "r"), store)
    assert held is not None and held.name == "test"


def test_no_held_out_label_gives_no_estimate(trained: Path, data: Path) -> None:
    store = open_store(data / "digits")
    model = Predictor(trained)
    found = pseudo_label(model, store, 0)
    del store.splits["test"]
    result = precision.estimate_precision(model, store, found.thresholds, found.trusted)
    assert isinstance(result, str) and "no image with a held-out label" in result
    assert "check some by hand" in warnings_on(result)[0]


def test_training_images_in_the_test_set_of_another_store_do_not_count(
    trained: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(data / "digits")
    model = Predictor(trained)
    monkeypatch.setattr(Predictor, "trained_on", lambda self, other: other is not store)
    seen = np.arange(360) % 3 == 0
    monkeypatch.setattr(precision, "own_store", lambda model: SimpleNamespace())
    monkeypatch.setattr(precision, "seen_in_training", lambda *a: seen)
    held = precision.held_out_images(model, store)
    assert held is not None and held.indices.tolist() == np.flatnonzero(~seen).tolist()
    assert not held.chose


def test_test_images_that_may_have_been_trained_on_give_no_estimate(
    trained: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = open_store(data / "digits"), Predictor(trained)
    found = pseudo_label(model, store, 0)
    monkeypatch.setattr(Predictor, "trained_on", lambda self, other: False)
    result = precision.estimate_precision(model, store, found.thresholds, found.trusted)
    assert isinstance(result, str) and "may have been trained on" in result


@pytest.mark.parametrize(("right", "images"), [(0, 7), (7, 7), (185, 186), (30, 61)])
def test_the_interval_is_that_of_clopper_and_pearson(right: int, images: int) -> None:
    exact = binomtest(right, images).proportion_ci(0.95)
    assert precision.interval(right, images, 10**9, 0.05) == pytest.approx(
        (exact.low, exact.high), abs=1e-6
    )
    low, high = precision.interval(right, images, 20, 0.05)
    assert low <= exact.low and high >= exact.high, "few labels are a small sample themselves"
