"""The command without a usable terminal: lost, closed, nobody reads it, or it is plain ASCII."""

import json
import os
import pty
import shlex
import subprocess
import sys

import pytest
from PIL import Image

from tests.e2e.test_command import HELD, ROOT
from tests.process_output import PATIENCE
from tests.runs import TINY


def fastssl(*words, **named):
    command = [sys.executable, "-m", "fastssl", *map(str, words)]
    return subprocess.run(command, text=True, timeout=PATIENCE, **named)


def test_a_lost_terminal_does_not_fail_a_run(data, tmp_path):
    out = tmp_path / "run"
    master, terminal = pty.openpty()
    words = [*TINY, "steps=20", "log_every=1", "eval_every=20", "checkpoint_every=20"]
    words += ["eval_every_late=20", "--out", str(out)]
    release = tmp_path / "release"
    command = [sys.executable, "-c", HELD, str(release), "train", "digits", *words]
    place = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(command, stdout=terminal, stderr=terminal, cwd=ROOT, env=place)
    os.close(terminal)
    try:
        shown = b""
        while b"held" not in shown or b"/20 " not in shown:  # in its third step, with a bar
            shown += os.read(master, 1 << 12)
        os.close(master)  # from here on, every write fails with EIO
        release.touch()
        assert child.wait(PATIENCE) == 0
    finally:
        child.kill()
        child.wait()
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
    line = f"{shlex.quote(sys.executable)} -m fastssl {words} {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=PATIENCE)
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


# The command, which can get only so much more memory from a moment on: how much it has by then
# depends on the machine and on what is installed. Arguments: MOMENT, then those of the command.
LIMITED = """
import resource, sys
from pathlib import Path
from fastssl import cli
from tests.faults import fault_points

def limit(more):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

if sys.argv.pop(1) == "import":
    limit(1 << 28)  # less than torch takes
else:
    from fastssl.engine import dry_run
    fault_points.at_call(dry_run, "train_step", 1, lambda: limit(0))
cli.main()
"""


@pytest.mark.parametrize(("moment", "before"), [("import", 0), ("step", 6)])
def test_a_limit_on_memory_gets_two_lines(moment, before, data):
    command = [sys.executable, "-c", LIMITED, moment, "train", "digits", *TINY, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    lines = done.stderr.splitlines()
    assert done.returncode == 5 and len(lines) == before + 2, done.stderr
    assert lines[-2].startswith("error: the memory of ") and "ulimit -v" in lines[-1]
