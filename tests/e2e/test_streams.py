"""The command without a usable terminal: lost, closed, nobody reads it, or it is plain ASCII."""

import json
import os
import pty
import resource
import subprocess
import sys

import pytest
from PIL import Image

from tests.runs import TINY


def fastssl(*words, **named):
    command = [sys.executable, "-m", "fastssl", *map(str, words)]
    return subprocess.run(command, text=True, timeout=240, **named)


def test_a_lost_terminal_does_not_fail_a_run(data, tmp_path):
    out = tmp_path / "run"
    master, terminal = pty.openpty()
    words = [*TINY, "steps=100", "log_every=1", "eval_every=100", "checkpoint_every=100"]
    words += ["eval_every_late=100", "--out", str(out)]
    command = [sys.executable, "-m", "fastssl", "train", "digits", *words]
    child = subprocess.Popen(command, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"/100 " not in shown:  # the bar is there
        shown += os.read(master, 1 << 12)
    os.close(master)  # from here on, every write fails with EIO
    assert child.wait(240) == 0
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        ("list algorithms", "<&-"),
        ("list algorithms", ">&-"),
        ("list nothing", "2>&-"),
        (f"train digits {' '.join(TINY)} --dry-run", "<&- >&- 2>&-"),
    ],
)
def test_closed_streams_change_no_exit_code(words, closed, data):
    line = f"{sys.executable} -m fastssl {words} {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=240)
    assert "Traceback" not in done.stdout + done.stderr and "Exception" not in done.stderr
    assert done.returncode == (2 if "nothing" in words else 0), done.stderr


@pytest.mark.parametrize("verb", ["predict", "list", "convert", "help"])
def test_a_reader_that_has_ended_is_no_error(verb, trained, data, tmp_path):
    words = {
        "predict": ["predict", trained, data / "digits"],
        "list": ["list", "algorithms"],
        "convert": ["convert", "digits", tmp_path / "new"],
        "help": ["--help"],
    }[verb]
    read, write = os.pipe()
    os.close(read)
    done = fastssl(*words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_text_that_the_terminal_cannot_show_is_escaped(trained, tmp_path):
    file = tmp_path / "grün.png"
    Image.new("RGB", (16, 16)).save(file)
    place = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words in (["config", "digits"], ["train", "--help"], ["predict", trained, file]):
        done = fastssl(*words, env=place, capture_output=True)
        assert done.returncode == 0 and done.stdout, done.stderr
    assert "gr\\xfcn.png" in done.stdout


@pytest.mark.parametrize("gigabytes", [0.5, 2])
def test_a_limit_on_memory_gets_two_lines(gigabytes, data):
    limit = int(gigabytes * 2**30)
    done = fastssl(
        "train", "digits", *TINY, "--dry-run",
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert done.returncode == 5 and len(lines) == 2, done.stderr
    assert "ulimit -v" in lines[1]
