"""Options of the subjects: the same rules on the command line and in Python."""

import json
import sys
from dataclasses import fields
from importlib import import_module

import pytest
from typer.testing import CliRunner

from fastssl.cli.command import app, main
from fastssl.errors import ConfigError
from fastssl.profiling import views
from fastssl.profiling.subjects import SUBJECTS, parse_options

RECORD = {
    "what": "views 32",
    "results": [{"name": "fastssl", "rate": 2.0}, {"name": "torch", "rate": 1.0, "more": 1}],
    "ratio": {"torch": 2.0},
    "says": "More threads help.",
}


def test_every_subject_has_a_module_and_help_for_every_option():
    for subject, options in SUBJECTS.items():
        assert callable(import_module(f"fastssl.profiling.{subject}").run)
        assert all(field.metadata["help"] for field in fields(options))


def test_a_command_passes_its_options_and_prints_and_saves_the_record(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(views, "run", lambda options: given.append(options) or RECORD)
    command = ["profile", "views", "--batch", "64", "--threads", "1,2", "--save", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert (given[0].batch, given[0].threads, given[0].size) == (64, (1, 2), 32)
    assert "torch: 2.0 times" in done.output and "More threads help." in done.output
    assert json.loads((tmp_path / "views-32.json").read_text()) == RECORD
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).output) == RECORD


def test_settings_of_a_run_go_with_the_options_of_a_plan(monkeypatch):
    found = []
    monkeypatch.setattr("fastssl.profiling.plan.run", lambda options: found.append(options) or {})
    words = ["profile", "plan", "batch=8", "--world", "4", "--link", "12e9", "--no-check"]
    CliRunner().invoke(app, [*words, "device=cuda"])
    (options,) = found
    assert options.overrides == ("batch=8", "device=cuda") and options.world == 4
    assert options.link == 12e9 and options.decode is None and options.check is False


@pytest.mark.parametrize(
    ("subject", "given", "message"),
    [
        ("vievs", {}, "nothing to profile named 'vievs'"),
        ("step", {"color": 2}, "no option 'color'"),
        ("step", {"batch": "abc"}, "batch is 'abc'; expected: a valid integer"),
        ("step", {"batch": 0}, "greater than or equal to 1"),
        ("views", {"threads": "1,x"}, "threads is 'x'"),
        ("views", {"threads": ()}, "threads is"),
        ("views", {"seconds": float("nan")}, "finite"),
        ("plan", {"steps": 1}, "greater than or equal to 2"),
        ("convert", {"workers": 0}, "workers is 0"),
    ],
)
def test_an_option_that_is_wrong_is_named(subject, given, message):
    with pytest.raises(ConfigError, match=message):
        parse_options(subject, given)


@pytest.mark.parametrize("words", [["step", "--batch", "abc"], ["step", "--batch", "0"]])
def test_a_mistake_on_the_command_line_gets_two_lines(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fastssl", "profile", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(lines) == 2
    assert lines[0].startswith("error: ") and lines[1].startswith("  fix: ")
