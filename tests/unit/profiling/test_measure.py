"""Measuring: the order of the cases, the statistics, and what a record may hold."""

import json
import sys
from pathlib import Path

import pytest

from fastssl.profiling import measure


def test_cases_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[str] = []

    def case(name: str):
        def work() -> float:
            calls.append(name)
            return float(len(calls))

        return work

    found = measure.interleave({name: case(name) for name in "abc"}, repetitions=3, warmup=1)
    assert "".join(calls) == "abc" "bca" "cab" "abc"  # fmt: skip
    assert found["a"].values == (6.0, 8.0, 10.0)
    assert found["a"].median == 8.0


def test_median_and_spread_are_those_of_statistics() -> None:
    found = measure.Measured((1.0, 2.0, 3.0, 4.0, 100.0), busy=1.0)
    assert found.median == 3.0 and found.spread == 2.0
    assert measure.Measured((5.0,), busy=1.0).spread == 0.0


def test_a_rate_is_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 11.5, 12.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert measure.rate(lambda: 300, seconds=2.0) == 450.0


def test_processor_time_grows_with_work() -> None:
    before = measure.cpu_seconds()
    while measure.cpu_seconds() - before < 0.05:
        sum(range(10_000))
    assert measure.cpu_seconds() > before


def test_a_command_holds_no_path_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        f"{tmp_path}/bin/fastssl",
        "profile",
        "views",
        f"--out={tmp_path}/made/here",
        f"store={tmp_path.parent}/elsewhere/data",
        "--size",
        "32",
    ]
    message = measure.command_line(words)
    assert message == "fastssl profile views --out=made/here store=data --size 32"
    assert measure.command_line(["/opt/lib/fastssl/__main__.py", "list"]) == "fastssl list"


def test_an_environment_says_what_a_record_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fastssl", "profile", "views"])
    found = measure.environment()
    assert found["command"] == "fastssl profile views"
    assert {"commit", "date", "machine", "cores", "versions", "load_1m"} <= set(found)
    assert measure.environment("make it")["command"] == "make it"


def test_a_record_is_saved_by_what_it_measured(tmp_path: Path) -> None:
    file = measure.save({"what": "views 32", "results": []}, tmp_path / "results")
    assert file.name == "views-32.json" and json.loads(file.read_text())["results"] == []
    assert [f.name for f in file.parent.iterdir()] == ["views-32.json"]


def test_a_record_names_no_folder_of_its_machine_in_the_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # paths below the working folder are kept
    given = {"config": "cifar10", "overrides": ("batch=8", "store=/somewhere/store-cifar10")}
    record = measure.make_record("train", given, [], {})
    assert record["settings"] == {**given, "overrides": ["batch=8", "store=store-cifar10"]}
    assert measure.make_record("step", {"batch": 8}, [], {})["settings"] == {"batch": 8}
