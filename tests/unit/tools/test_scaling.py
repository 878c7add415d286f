"""Weak scaling: gains by round, and a torchrun that fails or hangs."""

import json
import os
import subprocess

import pytest

from fastssl.errors import ResourceError
from tools.bench import scaling
from tools.bench.subjects import ScalingOptions


def test_gains_of_scaling_are_medians_over_rounds(monkeypatch):
    # The machine halves its speed after the first round.
    rates = {"alone": [10.0, 5.0, 5.0], "together": [18.0, 9.0, 18.0], "apart": [19.0, 9.5, 9.5]}
    monkeypatch.setattr(scaling, "launch", lambda options: rates)
    record = scaling.run(ScalingOptions(repetitions=3))
    json.dumps(record)
    assert record["ratio"] == {"processes": 1.8, "apart": 1.9}
    assert "2 processes train on 1.80 times" in record["says"] and "1.90" in record["says"]
    assert [row["rate"] for row in record["results"]] == [5.0, 9.5, 18.0]
    assert {row["rounds"] for row in record["results"]} == {3}


def instead_of_torchrun(monkeypatch, tmp_path, script):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(scaling.sys, "executable", str(program))


def test_a_torchrun_that_fails_is_an_error(monkeypatch, tmp_path):
    instead_of_torchrun(monkeypatch, tmp_path, "echo no port >&2; exit 1")
    with pytest.raises(ResourceError, match="torchrun failed") as error:
        scaling.launch(ScalingOptions())
    assert error.value.fix == "no port"


def test_a_torchrun_that_hangs_gets_sigterm(monkeypatch, tmp_path):
    file, ready = tmp_path / "ended", tmp_path / "ready"
    os.mkfifo(ready)
    trap = f"trap 'echo ended > {file}; exit' TERM\necho > {ready}"
    instead_of_torchrun(monkeypatch, tmp_path, f"{trap}\nwhile true; do sleep 0.05; done")

    class Started(subprocess.Popen):
        """A program whose time runs from when it can receive SIGTERM, on however busy a machine."""

        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            ready.read_text()

    monkeypatch.setattr(scaling.subprocess, "Popen", Started)
    monkeypatch.setattr(scaling, "PATIENCE", 1.0)
    with pytest.raises(ResourceError, match="did not end within 1 s"):
        scaling.launch(ScalingOptions(seconds=0.01))
    assert file.read_text() == "ended\n"


def test_two_processes_stop_together_after_the_first_counted_round():
    tiny = {"model": "wrn-10-1", "batch": 2, "size": 8}
    rates = scaling.launch(ScalingOptions(**tiny, repetitions=10**6, seconds=0.01))
    assert set(rates) == {"alone", "apart", "together"}
    assert all(len(values) == 1 and min(values) > 0 for values in rates.values())
