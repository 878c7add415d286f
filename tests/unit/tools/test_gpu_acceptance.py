"""The acceptance program where there is no GPU: what it would run, write and return."""

import json
import subprocess
from importlib import import_module

import pytest
import torch
from typer.testing import CliRunner

from fastssl.cli.command import app
from tests.rules.test_records import tool

program = tool("gpu_acceptance")


def test_a_machine_without_a_gpu_is_told(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_acceptance.py"])
    assert program.main() == 5
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "no GPU" in told[0] and "fix:" in told[1]


@pytest.mark.parametrize("quick", [True, False])
def test_the_command_takes_every_profile(quick, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    asked = []
    wanted = program.profiles(quick, tmp_path)
    for subject, words in wanted:
        module = import_module(f"fastssl.profiling.{subject}")
        monkeypatch.setattr(module, "run", lambda **given: asked.append(given) or {"results": []})
        done = CliRunner().invoke(app, ["profile", subject, *words, "--json"])
        assert done.exit_code == 0, done.output
    assert {subject for subject, _ in wanted} == {"views", "step", "cpl", "train", "photos"}
    assert [given.get("device") for given in asked[:4]] == ["cuda"] * 4
    assert asked[4]["config"] == "digits"  # CIFAR-10 is not converted there
    assert [given.get("repetitions") for given in asked] == [2 if quick else None] * 6


@pytest.mark.parametrize(("broken", "code"), [((), 0), (("cpl",), 1)])
def test_one_record_holds_everything(broken, code, monkeypatch, tmp_path):
    def profile(subject, words):
        if subject in broken:
            return {"what": subject, "failed": "no memory"}
        rows = [{"name": "fastssl", "rate": 2.0, "unit": "images/s", "spread": 0.1}]
        return {"what": subject, "results": rows, "ratio": {"pil": 3.0}}

    outcome = {"passed": True, "summary": "9 passed", "failed": []}
    monkeypatch.setattr(program, "profile", profile)
    monkeypatch.setattr(program, "run_tests", lambda: outcome)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: f"GPU {place}")
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
