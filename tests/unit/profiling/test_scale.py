"""Measuring scaling and a plan: small, for what the records say and not for speed."""

import json

import pytest
import torch

from fastssl.cli import profile
from fastssl.errors import ConfigError, ResourceError
from fastssl.profiling import collectives, plan, scaling
from fastssl.profiling.plan import Load, Rates, predict


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("algorithm", ["flexmatch", "freematch", "mixmatch"])
def test_collectives_are_counted_for_any_number_of_ranks(algorithm):
    found = {world: collectives.count("wrn-10-1", 2, 8, world, algorithm) for world in (1, 2, 8)}
    assert found[1]["calls"] == 0
    assert found[2]["calls"] == found[8]["calls"] > 2
    assert found[2]["bytes"] > 4 * 78_000  # all gradients, in whatever else there is
    assert not torch.distributed.is_initialized()


def test_a_plan_names_what_bounds_it():
    load = Load(images=100, views=200, bytes=10**6, shared=False)
    slow_data = predict(Rates(decode=100, views=10**6, step=1000), load)
    assert slow_data["bound"] == "decode" and slow_data["images_per_s"] == 100
    learning = predict(Rates(decode=10**6, views=10**6, step=1000), load)
    assert learning["bound"] == "step" and learning["images_per_s"] == 1000
    four = predict(Rates(decode=10**6, views=10**6, step=1000), load, world=4)
    assert four["images_per_s"] == 4000
    slow_link = predict(Rates(10**6, 10**6, 1000, link=10**6), load, world=4)
    assert slow_link["bound"] == "link" and slow_link["images_per_s"] < 100
    shared = predict(Rates(0, 200, 100), Load(100, 200, shared=True))
    assert shared["images_per_s"] == 50  # one second of views, one of learning


def test_the_record_of_a_plan(data):
    words = ["model=wrn-10-1", "batch=4", "ratio=1", "threads=1", "loader_threads=1"]
    record = plan.run("digits", words, steps=2, repetitions=1)
    json.dumps(record)
    assert record["ratio"]["plan"] > 0
    names = [row["name"] for row in record["results"]]
    assert names == ["decode", "views", "step", "plan", "measured"]
    assert [row["rounds"] for row in record["results"]] == [1, 1, 1, 0, 1]
    assert "one rank" in record["says"]
    given = plan.run("digits", words, decode=10.0, views=1e6, step=1e6, world=2, check=False)
    assert given["plan"]["bound"] == "decode" and given["ratio"] == {}
    with pytest.raises(ConfigError, match="no option 'speed'"):
        plan.run("digits", speed=3)


def test_how_far_a_plan_is_off_is_told_round_by_round(monkeypatch):
    from fastssl.profiling.measure import Measured

    # a machine that is slower by half in two of three rounds, other ones for each measurement
    rates = {"decode": [0.0] * 3, "views": [1e9] * 3}
    rates |= {"step": [100.0, 50.0, 50.0], "measured": [80.0, 40.0, 50.0]}
    found = {name: Measured(tuple(values), 0.0) for name, values in rates.items()}
    off = plan._off(plan.Options(), Load(100, 200), found)
    assert off == {"plan": 1.25}
    assert plan._off(plan.Options(), Load(100, 200), {"step": found["step"]}) == {}


def test_a_plan_ends_when_its_time_is_up(data, monkeypatch):
    from fastssl.profiling import plan_rates

    taken = []
    real = plan_rates.train_step
    monkeypatch.setattr(
        plan_rates, "train_step", lambda *given: taken.append(given) or real(*given)
    )
    words = ["model=wrn-10-1", "batch=4", "ratio=1", "threads=1", "loader_threads=1"]
    record = plan.run("digits", words, steps=9, repetitions=10**6, seconds=0.001)
    assert record["results"][-1]["rounds"] == 1 and len(taken) == 2 * (9 + plan_rates.WARMUP)
    taken.clear()
    monkeypatch.setattr(plan_rates, "ENOUGH", 0.0)  # steps so slow that three are enough
    record = plan.run("digits", words, steps=9, repetitions=1, seconds=60.0)
    assert record["results"][-1]["rounds"] == 1 and len(taken) == 2 * 2 * 3


def test_threads_that_have_cores_of_their_own_do_not_share_them(monkeypatch):
    from fastssl.config.resolve import load
    from fastssl.profiling.plan_rates import crowded

    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    assert crowded(load("digits", []).config)  # the model has all eight, the loader two of them
    assert not crowded(load("digits", ["threads=6"]).config)
    assert crowded(load("digits", ["threads=6", "loader_threads=3"]).config)


def test_the_record_of_scaling(monkeypatch):
    # the machine halves its speed after the first round: gains are of rounds, not of medians
    rates = {"alone": [10.0, 5.0, 5.0], "together": [18.0, 9.0, 18.0], "apart": [19.0, 9.5, 9.5]}
    monkeypatch.setattr(scaling, "launch", lambda asked: rates)
    record = scaling.run(repetitions=3)
    json.dumps(record)
    assert record["ratio"] == {"processes": 1.8, "apart": 1.9}
    assert "2 processes learn 1.80 times" in record["says"] and "1.90" in record["says"]
    assert [row["rate"] for row in record["results"]] == [5.0, 9.5, 18.0]
    assert {row["rounds"] for row in record["results"]} == {3}
    with pytest.raises(ConfigError, match="no option"):
        scaling.run(colour=1)
    with pytest.raises(ConfigError, match="2 processes"):
        scaling.run(processes=1)


def instead_of_torchrun(monkeypatch, tmp_path, script):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(scaling.sys, "executable", str(program))


def test_a_torchrun_that_fails_is_told(monkeypatch, tmp_path):
    instead_of_torchrun(monkeypatch, tmp_path, "echo no port >&2; exit 1")
    with pytest.raises(ResourceError, match="torchrun failed") as told:
        scaling.launch(scaling.Options())
    assert told.value.fix == "no port"


def test_a_torchrun_that_hangs_is_ended_as_it_wishes_to_be(monkeypatch, tmp_path):
    mark = tmp_path / "ended"
    script = f"trap 'echo in order > {mark}; exit' TERM\nwhile true; do sleep 0.05; done"
    instead_of_torchrun(monkeypatch, tmp_path, script)
    monkeypatch.setattr(scaling, "PATIENCE", 1.0)
    with pytest.raises(ResourceError, match="did not end within 1 s"):
        scaling.launch(scaling.Options(seconds=0.01))
    assert mark.read_text() == "in order\n"


def test_two_processes_measure_themselves_until_their_time_is_up():
    tiny = {"model": "wrn-10-1", "batch": 2, "size": 8}
    rates = scaling.launch(scaling.Options(**tiny, repetitions=10**6, seconds=0.01))
    assert set(rates) == {"alone", "apart", "together"}
    assert all(len(values) == 1 and min(values) > 0 for values in rates.values())


def fake_subject(monkeypatch, found):
    def run(**options):
        found.update(options)
        return {
            "what": "views 32",
            "results": [{"name": "fastssl", "rate": 2.0}, {"name": "pil", "rate": 1.0, "more": 1}],
            "ratio": {"pil": 2.0},
            "says": "All is well.",
        }

    from fastssl.profiling import views

    monkeypatch.setattr(views, "run", run)


def test_the_verb_gives_the_options_and_prints_the_record(monkeypatch, capsys, tmp_path):
    from typer.testing import CliRunner

    from fastssl.cli.command import app

    found = {}
    fake_subject(monkeypatch, found)
    words = ["profile", "views", "batch=64", "--against", "pil,dali", "--threads", "1,2"]
    done = CliRunner().invoke(app, [*words, "--save", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert found == {"batch": 64, "against": ("pil", "dali"), "threads": (1, 2)}
    assert "pil: 2.0 times" in done.output and "All is well." in done.output
    assert json.loads((tmp_path / "views-32.json").read_text())["ratio"] == {"pil": 2.0}
    done = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(done.output)["ratio"] == {"pil": 2.0}


@pytest.mark.parametrize(
    ("subject", "words", "config", "asked", "told"),
    [
        ("vievs", [], None, {}, "views"),
        ("step", ["colour=2"], None, {}, "no option 'colour'"),
        ("photos", [], None, {}, "folder"),
        ("step", [], "digits", {}, "takes no configuration"),
        ("cpl", [], None, {"size": 3}, "no option 'size'"),
        ("step", ["batch=abc"], None, {}, "batch can't be 'abc'; it wants a whole number"),
        ("step", ["batch=true"], None, {}, "a whole number"),
        ("step", ["batch=0"], None, {}, "a whole number"),
        ("step", ["batch"], None, {}, "not key=value"),
        ("step", [], None, {"threads": "1,2"}, "threads can't be '1,2'"),
        ("views", [], None, {"threads": "1,x"}, "or several with commas"),
        ("views", ["seconds=nan"], None, {}, "a number"),
        ("plan", ["check=perhaps"], None, {}, "true or false"),
        ("train", [], None, {"repetitions": -1}, "repetitions can't be '-1'"),
    ],
)
def test_what_can_not_be_profiled_is_told(subject, words, config, asked, told):
    with pytest.raises(ConfigError, match=told):
        profile.measure(subject, words, config, asked)


@pytest.mark.parametrize("words", [["step", "batch=abc"], ["step", "--threads", "1,2"], ["photos"]])
def test_a_mistake_is_told_in_two_lines_with_a_word_to_type(words, monkeypatch, capsys):
    from fastssl.cli.command import main

    monkeypatch.setattr("sys.argv", ["fastssl", "profile", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(told) == 2
    assert "  fix: " in told[1] and "=" in told[1]


def test_options_have_the_types_of_their_fields(monkeypatch):
    found = {}
    monkeypatch.setattr(plan, "run", lambda **options: found.update(options) or {})
    profile.measure("plan", ["link=12e9", "decode=none", "check=false"], None, {})
    assert found == {"link": 12e9, "decode": None, "check": False, "overrides": []}


def test_the_documented_plan_needs_no_data(tmp_path, monkeypatch):
    import re
    from pathlib import Path

    from typer.testing import CliRunner

    from fastssl.cli.command import app

    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    text = (Path(__file__).parents[3] / "docs" / "many_machines.md").read_text()
    line = re.search(r"`fastssl (profile plan [^`]+)`", text)[1]
    done = CliRunner().invoke(app, [*line.split(), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.output)
    assert record["settings"]["link"] == 12e9 and "32 ranks" in record["says"]
    weights = 25_557_032  # of a ResNet-50 with 1000 classes
    assert record["load"] == {"images": 256, "views": 384, "bytes": 4 * weights, "shared": False}


def test_a_plan_on_paper_has_the_load_of_a_real_run(data):
    from fastssl.profiling import plan_rates

    words = ["model=wrn-10-1", "batch=4", "ratio=3", "device=cpu", "threads=1"]
    with plan_rates.opened("digits", words) as base:
        assert plan_rates.load_on_paper("digits", words) == plan_rates.load_of(base)


def test_words_of_a_run_are_settings(monkeypatch):
    found = {}
    monkeypatch.setattr(plan, "run", lambda **options: found.update(options) or {})
    profile.measure("plan", ["batch=8", "world=4"], "cifar10", {"steps": 3})
    assert found == {"overrides": ["batch=8"], "world": 4, "config": "cifar10", "steps": 3}


def test_every_subject_is_there():
    from importlib import import_module

    for subject in profile.SUBJECTS:
        module = import_module(f"fastssl.profiling.{subject}")
        assert callable(module.run) and module.__doc__
