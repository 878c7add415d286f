"""Messages: a Python user silences or redirects them; log.txt and stderr get the same lines."""

import io
import logging
import sys
import threading

import pytest

import fastssl
from fastssl.cli.command import report
from fastssl.errors import DataError
from fastssl.tracking import console
from fastssl.tracking.metrics import MetricsLog
from fastssl.tracking.progress_bar import Bar, Display
from fastssl.tracking.run_dir import RunFolder
from fastssl.tracking.tables import show
from tests.runs import TINY


@pytest.fixture
def logger():
    found = logging.getLogger("fastssl")
    yield found
    found.setLevel(logging.NOTSET)
    found.handlers.clear()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def train(out):
    settings = dict(word.split("=", 1) for word in [*TINY, "steps=2", "tensorboard=false"])
    return fastssl.train("digits", out=out, **settings)


def test_a_training_prints_its_lines_on_stderr_and_keeps_them(data, tmp_path, capsys, logger):
    train(tmp_path / "run")
    printed = [line.split()[0] for line in capsys.readouterr().err.splitlines() if line]
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    kept = [line.split()[2] for line in log if len(line.split()) > 2]
    assert printed[:6] == kept[:6] == ["data", "learn", "model", "device", "reader", "run"]
    assert printed[-1] == kept[-1] == "next:"
    assert any(" evaluated: error " in line for line in log)
    assert not logger.handlers and logger.propagate and logger.level == logging.NOTSET


def test_a_level_silences_a_training(data, tmp_path, capfd, logger):
    logger.setLevel(logging.WARNING)
    assert train(tmp_path / "run")["steps"] == 2
    assert capfd.readouterr().err == ""


def test_a_handler_of_the_user_redirects_a_training(data, tmp_path, capfd, logger):
    stream = io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))
    train(tmp_path / "run")
    assert capfd.readouterr().err == "" and "\nnext: fastssl eval" in stream.getvalue()
    assert (tmp_path / "run" / "log.txt").read_text().count("next: ") == 1


def test_messages_stand_above_the_bar_which_repeats_no_line(monkeypatch, tmp_path, logger):
    monkeypatch.setattr(sys, "stderr", Terminal())
    line = {"loss": 1.0, "speed/images_per_s": 9.0, "speed/data_wait": 0.0}
    with console.messages():
        console.open_log(tmp_path / "log.txt")
        display = Display(10)
        display.start(0)
        display.log_metrics(5, line)
        logger.info("[a message]")
        display.stop()
    shown = sys.stderr.getvalue()
    assert "[a message]" in shown and "loss 1.0000" in shown and "step 5/10" not in shown
    assert "step 5/10  loss 1.0000" in (tmp_path / "log.txt").read_text()


def test_there_is_no_bar_where_messages_are_silenced(monkeypatch, logger):
    monkeypatch.setattr(sys, "stderr", Terminal())
    logger.setLevel(logging.ERROR)
    with console.messages():
        bar = Bar()
        bar.start(10)
        assert not bar.shown


def test_a_log_that_cannot_be_written_is_reported_once(tmp_path, capsys, logger):
    with console.messages():
        logger.info("before")
        console.open_log(tmp_path)  # a folder
        logger.info("after")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and len(lines) == 3
    assert lines[1].startswith("warning: log.txt can't be written (")


def test_a_closed_terminal_stops_nothing(monkeypatch, logger):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with console.messages():
        logger.info("nobody reads this")


def test_a_quiet_block_shows_nothing(capsys, logger):
    with console.messages(quiet=True):
        logger.warning("of rank 1")
        logging.getLogger("fastssl.engine").info("of rank 1")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("changed", [False, True])
def test_tensorboard_leaves_the_hook_of_threads_to_the_user(changed, tmp_path, monkeypatch):
    def hook(failure):
        raise AssertionError

    def later(failure):
        raise AssertionError

    monkeypatch.setattr(threading, "excepthook", hook)
    folder = RunFolder(tmp_path)
    folder.claim(resume=False)
    record = MetricsLog(folder, True, 0)
    assert threading.excepthook != hook
    if changed:
        threading.excepthook = later
    record.close()
    assert threading.excepthook is (later if changed else hook)
    folder.release()


def test_names_with_escape_sequences_are_shown_and_not_obeyed(capsys, logger):
    show([{"label": "\x1b[2Jrose", "images": 1}], False)
    with console.messages():
        logging.getLogger("fastssl.test").warning("odd: \x1b]0;x\x07\u202e\nnext line")
    seen = capsys.readouterr()
    assert "\\x1b[2Jrose" in seen.out and "\x1b" not in seen.out
    assert seen.err == "warning: odd: \\x1b]0;x\\x07\\u202e\nnext line\n"
    assert report(DataError("there is no \x1b[2J\x07", "look")) == 3
    assert capsys.readouterr().err == "error: there is no \\x1b[2J\\x07\n  fix: look\n"
