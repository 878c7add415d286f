"""A plan: the cost model by hand, and the content of small records."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastssl.cli.command import app
from fastssl.config.resolve import load
from fastssl.profiling import plan, step_timing
from fastssl.profiling.cost_model import Load, Rates, predict
from fastssl.profiling.measure import Measured
from fastssl.profiling.subjects import PlanOptions

ROOT = Path(__file__).parents[3]
TINY = ("model=wrn-10-1", "batch=4", "ratio=1", "threads=1", "loader_threads=1")


def test_a_plan_names_what_bounds_it():
    load = Load(images=100, views=200, bytes=10**6, shared=False)
    slow_data = predict(Rates(decode=100, views=10**6, step=1000), load)
    assert slow_data["bound"] == "decode" and slow_data["images_per_s"] == 100
    slow_step = predict(Rates(decode=10**6, views=10**6, step=1000), load)
    assert slow_step["bound"] == "step" and slow_step["images_per_s"] == 1000
    four = predict(Rates(decode=10**6, views=10**6, step=1000), load, world=4)
    assert four["images_per_s"] == 4000
    slow_link = predict(Rates(10**6, 10**6, 1000, link=10**6), load, world=4)
    assert slow_link["bound"] == "link" and slow_link["images_per_s"] < 100
    shared = predict(Rates(0, 200, 100), Load(100, 200, shared=True))
    assert shared["images_per_s"] == 50  # one second of views, one of training


def test_a_record_of_a_plan_has_the_rates_and_the_measured_steps(data):
    options = PlanOptions(overrides=TINY, steps=2, repetitions=1)
    record = plan.run(options)
    json.dumps(record)
    assert [row["name"] for row in record["results"]] == [
        "decode",
        "views",
        "step",
        "plan",
        "measured",
    ]
    assert [row["rounds"] for row in record["results"]] == [1, 1, 1, 0, 1]
    rates = {row["name"]: row["rate"] for row in record["results"]}
    assert record["ratio"]["plan"] == pytest.approx(rates["plan"] / rates["measured"], rel=0.05)
    assert "one rank" in record["says"]


def test_a_plan_with_given_rates_measures_nothing(data, monkeypatch):
    monkeypatch.setattr(plan, "interleave", None)
    options = PlanOptions(overrides=TINY, decode=10.0, views=1e6, step=1e6, world=2)
    record = plan.run(options)
    assert record["plan"]["bound"] == "decode" and record["ratio"] == {}


def test_a_plan_is_compared_round_by_round():
    # A machine that is slower by half in two of three rounds, not the same for each measurement.
    rates = {"decode": [0.0] * 3, "views": [1e9] * 3}
    rates |= {"step": [100.0, 50.0, 50.0], "measured": [80.0, 40.0, 50.0]}
    found = {name: Measured(tuple(values), 0.0) for name, values in rates.items()}
    assert plan.compare(PlanOptions(), Load(100, 200), found) == {"plan": 1.25}
    assert plan.compare(PlanOptions(), Load(100, 200), {"step": found["step"]}) == {}


def test_a_plan_ends_when_its_time_is_up(data, monkeypatch):
    steps = []
    real = step_timing.train_step
    monkeypatch.setattr(
        step_timing, "train_step", lambda *given: steps.append(given) or real(*given)
    )
    monkeypatch.setattr(plan, "LIMIT", 0.0)  # one counted step per measurement is enough
    options = PlanOptions(overrides=TINY, steps=9, repetitions=10**6, seconds=0.001)
    record = plan.run(options)
    assert record["results"][-1]["rounds"] == 1
    assert len(steps) == 2 * 2 * (plan.WARMUP + 1)  # two rounds of "step" and "measured"


def test_cores_are_shared_if_there_are_more_threads(monkeypatch):
    for module in (plan, plan.devices):
        monkeypatch.setattr(module, "available_cpus", lambda: 8)
    assert plan.cores_are_shared(load("digits", []).config)  # 8 for the model, 2 for the loader
    assert not plan.cores_are_shared(load("digits", ["threads=6"]).config)
    assert plan.cores_are_shared(load("digits", ["threads=6", "loader_threads=3"]).config)


def test_the_load_without_data_is_that_of_a_real_run(data):
    overrides = ["model=wrn-10-1", "batch=4", "ratio=3", "device=cpu", "threads=1"]
    found = plan.configured_load("digits", overrides)
    with plan.open_run("digits", overrides) as base:
        order, model = base.data.loader.order, base.learner.model
        batch = next(base.data.loader.iterate(0, 1))
        views = len(batch.images) + sum(len(view) for view in batch.views.values())
    assert found.images == order.batch + order.unlabeled_batch and found.views == views
    assert found.bytes == 4 * sum(weight.numel() for weight in model.parameters())
    assert found.shared == plan.cores_are_shared(base.learner.resolved.config)


def test_the_documented_plan_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    text = "".join(
        p.read_text() for folder in ("tools", "docs") for p in ROOT.glob(f"{folder}/*.md")
    )
    line = re.search(r"`fastssl (profile plan [^`]+)`", text)[1]
    done = CliRunner().invoke(app, [*line.split(), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.output)
    assert record["settings"]["link"] == 12e9 and "32 ranks" in record["says"]
    weights = 25_557_032  # of a ResNet-50 with 1000 classes
    assert record["load"] == {"images": 256, "views": 384, "bytes": 4 * weights, "shared": False}
