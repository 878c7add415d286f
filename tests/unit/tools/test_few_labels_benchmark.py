"""The benchmark of few labels: the same labels for all models, each of which is made once."""

import argparse

import pytest
import torch
import yaml

from fastssl import models
from tests import small_stores
from tools import few_labels_benchmark


@pytest.mark.slow
def test_all_models_have_the_labels_of_the_probe_and_are_made_once(tmp_path, monkeypatch):
    weights = tmp_path / "weights.pt"
    torch.save(models.build("wrn-10-1", classes=small_stores.CLASSES).state_dict(), weights)
    store = small_stores.make_store(tmp_path / "store", size=16, formats=("dali",))
    monkeypatch.setattr(few_labels_benchmark, "RUNS", tmp_path / "runs")
    options = argparse.Namespace(store=str(store.path), weights=str(weights), model="wrn-10-1")
    given = {"labels": "5/class", "seed": 1, "batch": 8, "ratio": 1, "steps": 2}
    found = few_labels_benchmark.rows(options, given)
    assert tuple(found) == few_labels_benchmark.NAMES
    assert few_labels_benchmark.rows(options, given) == found, "it was trained again"
    configs = [
        yaml.safe_load(path.read_text()) for path in (tmp_path / "runs").glob("*/*/config.yaml")
    ]
    assert {(one["labels"], one["seed"], one["split_seed"]) for one in configs} == {
        ("5/class", 1, None)
    }
    starts = sorted(str(one["pretrained"]).rsplit("/", 1)[-1] for one in configs)
    assert starts == ["None", "probe", "weights.pt", "weights.pt"]


def test_the_note_says_that_imagenet_was_seen_whatever_the_user_adds():
    note = few_labels_benchmark.note
    assert note(["n02102040", "n03000684"], "busy") == f"{few_labels_benchmark.SEEN} busy"
    assert note(["n02102040"], "") == few_labels_benchmark.SEEN
    assert note(["n02102040", "pug"], "busy") == "busy" and note(["pug"], "") == ""
