"""The acceptance program where there is no GPU: what it would run, write and return."""

import json
import subprocess

import pytest
import torch

from fastssl.profiling.subjects import parse_options
from tests.rules.test_records import tool
from tools.bench.subjects import SUBJECTS
from tools.profile_throughput import pairs

program = tool("gpu_acceptance")


def test_a_machine_without_a_gpu_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_acceptance.py"])
    assert program.main() == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "no GPU" in lines[0] and "fix:" in lines[1]


@pytest.mark.parametrize("quick", [True, False])
def test_the_options_of_every_profile_are_accepted(quick, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    wanted = program.profiles(quick, tmp_path)
    given = [parse_options(subject, pairs(options), SUBJECTS) for subject, options in wanted]
    assert [subject for subject, _ in wanted] == [
        "views",
        "views",
        "step",
        "cpl",
        "train",
        "photos",
    ]
    assert [options.device for options in given[:4]] == ["cuda"] * 4
    assert given[2].compiled and given[2].batch == 64
    assert given[4].config == "digits"  # CIFAR-10 is not converted there
    assert all((options.repetitions == 2) == quick for options in given)


@pytest.mark.parametrize(("broken", "code"), [((), 0), (("cpl",), 1)])
def test_one_record_holds_everything(broken, code, monkeypatch, tmp_path):
    def profile(subject, options):
        if subject in broken:
            return {"what": subject, "failed": "no memory"}
        rows = [{"name": "fastssl", "rate": 2.0, "unit": "images/s", "spread": 0.1}]
        return {"what": subject, "results": rows, "ratio": {"pil": 3.0}}

    outcome = {"passed": True, "summary": "9 passed", "failed": []}
    monkeypatch.setattr(program, "profile", profile)
    monkeypatch.setattr(program, "run_tests", lambda: outcome)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr("sys.argv", ["gpu_acceptance.py", "--quick", "--out", str(tmp_path)])
    assert program.main() == code
    record = json.loads((tmp_path / "gpu-acceptance.json").read_text())
    assert record["devices"] == ["GPU 0", "GPU 1"] and record["tests"] == outcome
    assert len(record["results"]) == 5 - len(broken) and record["environment"]["command"]
    assert record["ratio"]["views"] == {"pil": 3.0}


def test_a_test_that_fails_on_the_gpu_is_named(monkeypatch):
    commands = []

    def run(command, **more):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "..F\nFAILED a::b - no\n1 failed", "")

    monkeypatch.setattr(subprocess, "run", run)
    found = program.run_tests()
    assert found == {"passed": False, "summary": "1 failed", "failed": ["FAILED a::b - no"]}
    assert commands[0][2:] == ["pytest", "-m", "gpu", "-q", "tests"]
