"""What `make` installs: the plain package for the quickstart, everything for the tests, once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "debian_packages.sh"
BASH = shutil.which("bash")
MAKE = shutil.which("make")


def planned(folder: Path, target: str) -> str:
    """Return the commands that make would run in a folder."""
    command = [str(MAKE), "--dry-run", "--no-print-directory", target]
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, env=environment
    ).stdout


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
def test_each_part_is_installed_once_in_either_order(tmp_path):
    for name in ("Makefile", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    first = planned(tmp_path, "quickstart")
    assert "--editable .\n" in first and "fastssl train digits" in first
    for word in ("dali", "dev", "ffcv", "timm", "debian_packages", "pytest"):
        assert word not in first
    both = planned(tmp_path, "test")
    assert "-m venv" in both and "dev]" in both and "[ffcv]" in both
    (tmp_path / ".venv" / ".plain").touch()
    rest = planned(tmp_path, "test")
    assert "-m venv" not in rest and "dev]" in rest and "[ffcv]" in rest
    (tmp_path / ".venv" / ".complete").touch()
    assert "pip install" not in planned(tmp_path, "test") + planned(tmp_path, "quickstart")


def system(folder: Path, **programs: str) -> dict[str, str]:
    """Return the environment of a system that has nothing but these programs."""
    for name, code in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!{BASH}\n{code}\n")
        program.chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("arguments", "programs"),
    [
        ([], {"pkg_config": '[ "$*" = "--exists opencv4 libturbojpeg" ]'}),
        (["browser"], {"chromium": "", "chromedriver": ""}),
        (["browser"], {"chromium_browser": "", "chromedriver": ""}),
    ],
)
def test_what_is_there_already_needs_no_debian(tmp_path, arguments, programs):
    command = [str(BASH), str(SCRIPT), *arguments]
    done = subprocess.run(command, env=system(tmp_path, **programs), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "programs", "missing"),
    [
        ([], {"pkg_config": "exit 1"}, "OpenCV and libturbojpeg"),
        ([], {}, "OpenCV and libturbojpeg"),
        (["browser"], {"chromium": ""}, "chromium and chromedriver"),
    ],
)
def test_what_is_missing_is_named_where_it_cannot_be_installed(
    tmp_path, arguments, programs, missing
):
    command = [str(BASH), str(SCRIPT), *arguments]
    done = subprocess.run(command, env=system(tmp_path, **programs), capture_output=True, text=True)
    assert done.returncode == 3
    what, fix = done.stderr.splitlines()
    assert missing in what and fix.startswith("  fix: ") and "apt-get install" in fix
