"""Systems other than Linux: what is installed there, and that the package starts there."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement

from pipelines import extras

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = {
    "linux": {"sys_platform": "linux", "python_version": "3.11"},
    "linux, Python 3.12": {"sys_platform": "linux", "python_version": "3.12"},
    "macOS": {"sys_platform": "darwin", "python_version": "3.11"},
    "Windows": {"sys_platform": "win32", "python_version": "3.11"},
}


@pytest.mark.parametrize(
    ("system", "ffcv", "dali"),
    [
        ("linux", True, True),
        ("linux, Python 3.12", False, True),
        ("macOS", False, False),
        ("Windows", False, False),
    ],
)
def test_an_extra_asks_only_for_what_its_system_has(monkeypatch, system, ffcv, dali):
    given = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")

    def installs(extra):
        found = map(Requirement, given["extras_require"][extra])
        return any(one.marker is None or one.marker.evaluate(SYSTEMS[system]) for one in found)

    assert (installs("ffcv"), installs("dali")) == (ffcv, dali)
    assert installs("timm") and installs("export")


def test_the_line_that_installs_an_extra(monkeypatch):
    listed = [
        "torch>=2.14",
        "timm>=1; extra == 'timm'",
        "ffcv==1; (sys_platform == 'linux' or sys_platform != 'linux') and extra == 'ffcv'",
        "nvidia-dali; sys_platform == 'elsewhere' and extra == 'dali'",
    ]
    monkeypatch.setattr(extras, "requires", lambda package: listed)
    assert extras.install_line("timm") == 'pip install "fastssl[timm]"'
    again = extras.install_line("timm", "cannot be imported: no libc")
    assert again == "pip install --force-reinstall --no-deps timm"
    assert extras.install_line("ffcv").startswith('pip install "fastssl[ffcv]", which needs a comp')
    assert extras.install_line("dali").startswith("nothing: dali has no packages for this system")


# The libraries come first: those that are installed here are built for this system.
WINDOWS = """
import os, select, signal, sys
import numba, psutil, subprocess, tempfile, torch, torch.utils.tensorboard, torchvision

sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
for module, names in (
    (os, "getloadavg getuid sched_getaffinity set_blocking sync sysconf"),
    (signal, "SIGHUP SIGKILL"),
    (select, "poll"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

from fastssl.cli import main
from fastssl.tracking.streams import reader_has_ended
from pipelines.jit import private_folder

assert not reader_has_ended()
private_folder()
for line in sys.argv[1:]:
    sys.argv = ["fastssl", *line.split()]
    try:
        main()
    except SystemExit as end:
        print(f"exit {end.code or 0}: {line}", flush=True)
"""


def test_the_command_works_without_what_only_posix_has(tmp_path):
    train = f"train digits --out {tmp_path}/run store={tmp_path}/store"
    convert = f"convert digits {tmp_path}/store"
    lines = ["--help", "list algorithms", "doctor", convert, train]
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS, *lines],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert "Traceback" not in done.stderr, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith("exit ")]
    codes = [0, 0, 0, 5, 5]
    assert ends == [f"exit {code}: {line}" for code, line in zip(codes, lines, strict=True)]
    assert done.stderr.count("this system has no flock\n  fix: use Linux, macOS") == 2
