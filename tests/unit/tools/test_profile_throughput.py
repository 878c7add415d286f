"""The program that measures our stages against their peers."""

import json
from pathlib import Path

import pytest

from tools import profile_throughput
from tools.bench import views

RECORD = {"what": "views 32", "results": [], "ratio": {"pil": 2.0}}


def test_options_and_peers_reach_the_measurement_and_json_is_printed(monkeypatch, capsys, tmp_path):
    given = []
    monkeypatch.setattr(views, "run", lambda *args, **more: given.append((args, more)) or RECORD)
    words = ["--only", "views", "--against", "pil,dali", "--size", "96", "--threads", "1,2"]
    assert profile_throughput.main([*words, "--json", "--out", str(tmp_path)]) == 0
    ((options,), more) = given[0]
    assert more == {"against": ("pil", "dali")}
    assert (options.size, options.threads) == (96, (1, 2))
    assert json.loads(capsys.readouterr().out) == RECORD
    assert json.loads((tmp_path / "views-32.json").read_text()) == RECORD


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "views", "--against", "pill"], "pil"),
        (["--only", "views", "--size", "33"], "32, 96 or 224"),
        (["--only", "cpl", "--against", "counter"], "--only views"),
        (["--only", "photos"], "no folder of photos"),
        (["--only", "skip", "--config", "cifar10", "algorithm=fixmatch"], "not of fixmatch"),
        (["--only", "skip", "--shares", "20,101"], "shares"),
    ],
)
def test_a_mistake_gets_two_lines_before_anything_is_measured(words, message, capsys):
    assert profile_throughput.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and message in "".join(lines) and lines[1].startswith("  fix: ")


def test_flags_and_settings_are_passed_on():
    words = ["--compiled", "--device", "cuda", "batch=8", "--config=digits"]
    assert profile_throughput.pairs(words) == {
        "compiled": "true",
        "device": "cuda",
        "config": "digits",
        "overrides": ["batch=8"],
    }


def test_photos_are_given_to_the_subjects_that_use_them(capsys):
    out = Path("out")
    commands = profile_throughput.commands(["convert", "photos"], Path("here"), out)
    assert commands == [
        ["--only", "convert", "--folder", "here", "--out", "out"],
        ["--only", "photos", "--folder", "here", "--out", "out"],
    ]
    commands = profile_throughput.commands(["convert", "photos"], None, out)
    assert commands == [["--only", "convert", "--out", "out"]]
    assert "photos is skipped" in capsys.readouterr().err
