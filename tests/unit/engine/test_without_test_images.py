"""Training on a store that has no test images."""

import json
from pathlib import Path

import pytest

import fastssl
from fastssl.engine import launch
from fastssl.errors import ConfigError, DataError
from fastssl.report import write as write_report
from pipelines.convert import convert
from pipelines.sources import Source
from pipelines.store.store import open_store
from tests import small_stores
from tests.unit.engine.test_resume import TINY


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made: list[Source] = []
    with monkeypatch.context() as patch:
        patch.setattr(small_stores, "convert", lambda source, *rest: made.append(source))
        patch.setattr(small_stores, "open_store", lambda path: None)
        small_stores.make_store(tmp_path / "unused", formats=("dali",))
    (source,) = made
    del source.splits["test"]
    convert(source, tmp_path / "store")
    return tmp_path / "store"


def train(store: Path, **settings: object) -> dict[str, object]:
    given = {**TINY, "labels": 16, "batch": 8, "eval_every": 2, **settings}
    return fastssl.train("own", store=str(store), out="run", **given)


def test_it_trains_without_an_evaluation_and_the_last_model_is_the_best(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "test" not in open_store(store).splits
    summary = train(store)
    shown = capsys.readouterr().err
    assert "no image to evaluate on" in shown and "0 to test" in shown
    assert "next: fastssl predict run IMAGES" in shown
    assert summary["best_error"] is None and summary["evaluations"] == 0
    assert summary["best_step"] == 4 and summary["status"] == "finished"
    assert fastssl.load("run").content["trip"]["step"] == 4
    with pytest.raises(DataError, match="no test images"):
        fastssl.evaluate("run")
    write_report([Path("run")], Path("report.html"), None)


def test_held_out_labels_take_the_place_of_the_test_images(store: Path) -> None:
    summary = train(store, validation=0.2)
    assert summary["best_chosen_on"] == "validation split" and summary["evaluations"] == 2
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "eval"]
    assert all(line["error"] == line["validation_error"] for line in found)
    assert 0 <= summary["best_error"] <= 100


def test_nothing_is_measured_on_pseudo_labels(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_store(store)
    found.manifest = found.manifest.model_copy(update={"pseudo_labels": 3})
    monkeypatch.setattr(launch, "find_store", lambda resolved: found)
    with pytest.raises(ConfigError, match=r"3 training labels of .* were chosen by a model"):
        train(store, validation=0.2)
    assert not Path("run/checkpoints").exists()
