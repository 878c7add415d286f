"""The number of steps follows from the measured time, and the batch from number and memory."""

from pathlib import Path

import pytest

from fastssl.automation import budget
from fastssl.automation.budget import Cost
from fastssl.automation.request import Request
from pipelines.store.store import open_store


@pytest.fixture
def store(data):
    return open_store(data / "digits")  # 360 test images


def plan(store, monkeypatch, minutes, cost, spent=0.0, **overrides):
    monkeypatch.setattr(budget, "measure", lambda _: cost)
    given = {"model": "wrn-10-1", "data": "own", **overrides}
    del given["data"]
    request = Request(folder=Path("x"), out=Path("out"), minutes=minutes, overrides=given)
    return {**budget.plan(request, store, spent), **budget.configuration(request)[1]}


def test_the_steps_fill_the_time_that_is_left(store, monkeypatch):
    # Batch 32 and ratio 1 are 96 images: 10 minutes less 60, 40 and 36 s (360 images) are 464 s.
    found = plan(store, monkeypatch, 10, Cost(0.1, 40.0, 0), 60.0, batch=2, ratio=2)
    assert (found["batch"], found["ratio"], found["steps"]) == (2, 2, 464)
    assert found["eval_every"] == found["eval_every_late"] == 464
    assert found["checkpoint_every"] == 60 and found["log_every"] == 15
    assert found["compile"] == "off"


def test_more_time_gives_larger_batches_and_then_all_steps(store, monkeypatch):
    cost = Cost(0.01, 0.0, 0)
    chosen = [plan(store, monkeypatch, m, cost) for m in (2, 5, 10, 30, 100, 100_000)]
    pairs = [(one["batch"], one["ratio"]) for one in chosen]
    assert pairs == [(16, 1), (16, 1), (32, 1), (32, 3), (32, 7), (32, 7)]
    assert chosen[-1]["steps"] == 20_000  # those of the configuration
    for one, minutes in zip(chosen[:-1], (2, 5, 10, 30, 100), strict=True):
        seconds = one["steps"] * one["batch"] * (1 + 2 * one["ratio"]) * cost.image
        assert 0.9 * 60 * minutes - 5 < seconds <= 60 * minutes - 3.6


def test_a_batch_that_does_not_fit_into_memory_is_not_chosen(store, monkeypatch):
    monkeypatch.setattr(budget, "free_memory", lambda: 100 * 10**9)
    found = plan(store, monkeypatch, 100, Cost(0.01, 0.0, 10**9))
    assert (found["batch"], found["ratio"]) == (32, 1)  # 96 images, not 224


def test_too_few_steps_name_the_minutes_that_suffice(store, monkeypatch):
    cost = Cost(0.04, 10.0, 0)
    why = plan(store, monkeypatch, 2, cost, 30.0)["why"]
    assert why.startswith("34 steps of 1.9 s fit into the 2 minutes")
    minutes = int(why.rsplit(" ", 1)[1])
    assert plan(store, monkeypatch, minutes, cost, 30.0)["steps"] >= budget.FEWEST
    assert "why" in plan(store, monkeypatch, minutes - 1, cost, 30.0)


def test_nothing_is_measured_when_the_time_is_over(store, monkeypatch):
    assert "are over" in plan(store, monkeypatch, 1, None, 60.0)["why"]


def test_settings_that_were_given_stay(store, monkeypatch):
    found = plan(store, monkeypatch, 100, Cost(0.01, 0.0, 0), eval_every=7, compile="max", lr=0.5)
    assert (found["eval_every"], found["compile"], found["lr"]) == (7, "max", 0.5)


def test_a_pretrained_network_starts_from_the_probe_with_its_classifier():
    request = Request(
        folder=Path("x"),
        out=Path("out"),
        overrides={"model": "wrn-10-1", "pretrained": "runs/a", "lr": 0.001},
    )
    name, settings = budget.configuration(request)
    assert name == "own_pretrained" and settings["pretrained"] == "out/probe"
    assert settings["head_init"] == "default" and settings["temperature"] == 1
    request.overrides["head_init"] = "means"
    assert "temperature" not in budget.configuration(request)[1]
