"""Help, examples and completion of every verb."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fastssl.cli.command import app
from fastssl.errors import ConfigError, DataError
from fastssl.tracking.console import messages
from fastssl.tracking.progress_bar import Progress

VERBS = sorted(typer.main.get_command(app).commands)
runner = CliRunner()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str) -> None:
    done = runner.invoke(app, [verb, "--help"], env={"COLUMNS": "100", "TERM": "dumb"})
    assert done.exit_code == 0
    assert f"Example: fastssl {verb} " in " ".join(done.stdout.split())
    command = typer.main.get_command(app).commands[verb]
    assert command.help and command.help.strip()
    for parameter in command.params:
        assert parameter.name == "help" or getattr(parameter, "help", None), parameter.name


def test_the_verbs_of_using_a_model_are_there() -> None:
    assert {"predict", "label", "export", "doctor"} <= set(VERBS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_written(shell: str) -> None:
    program = "import sys; sys.argv = ['fastssl']; from fastssl.cli.command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "_FASTSSL_COMPLETE": f"source_{shell}"},
    )
    assert done.returncode == 0, done.stderr
    assert "_FASTSSL_COMPLETE=complete_" + shell in done.stdout


def test_mistakes_of_use(trained: Path, tmp_path: Path) -> None:
    for words in (["config"], ["export", str(trained), "m.zip"]):
        assert isinstance(runner.invoke(app, words).exception, ConfigError)


def test_label_and_export_print_what_they_did(trained: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    words = ["label", str(trained), str(data / "digits"), "--out", str(out)]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "--given adds your own labels" in done.stdout and (tmp_path / "p.html").exists()
    assert "not estimated: no image is trusted" in done.stdout and "warning: " in done.stderr
    done = runner.invoke(app, [*words, "--floor", "0", "--json"])
    precision = json.loads(done.stdout)["precision"]
    assert 0 < precision["low"] < precision["right"] / precision["trusted"] < precision["high"] < 1
    file = tmp_path / "m.pt2"
    done = runner.invoke(app, ["export", str(trained), str(file)])
    assert done.exit_code == 0 and "difference" in done.stdout


def test_export_prints_one_json_list(trained: Path, tmp_path: Path) -> None:
    done = runner.invoke(app, ["export", str(trained), str(tmp_path / "m.pt2"), "--json"])
    assert done.exit_code == 0, done.output
    (written,) = json.loads(done.stdout)
    assert 0 <= written["difference"] <= 1e-4


def test_a_store_without_unlabeled_images_says_how_to_get_some(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fastssl.inference.pseudo_label.unlabeled", lambda model, store: [])
    words = ["label", str(trained), str(data / "digits"), "--out", str(tmp_path / "p.csv")]
    error = runner.invoke(app, words).exception
    assert isinstance(error, DataError) and "--unlabeled" in error.fix
    assert not list(tmp_path.iterdir())


def test_progress_towards_an_unknown_total_promises_no_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("fastssl.tracking.progress_bar.time.monotonic", lambda: now[0])
    with messages(), Progress(0, "predicting", "images") as bar:
        now[0] += 4
        bar.advance(8)
    assert capsys.readouterr().err == "predicting: 8 images, 2 images/s\n"
