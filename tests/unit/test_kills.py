"""A conversion that is killed or interrupted leaves no half store, and the next one succeeds."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipelines.convert.place import building
from pipelines.errors import ConfigError, ResourceError
from pipelines.store import open_store
from pipelines.verify import verify
from tests.pictures import write_folder

PROGRAM = """
import sys
from pathlib import Path
from fastssl.conversion import convert
formats = tuple(sys.argv[3:]) or None  # None: those of this machine
convert(sys.argv[1], Path(sys.argv[2]), size=64, formats=formats, workers=2, test_fraction=0.2)
"""


@pytest.fixture(scope="module")
def pets(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("kills") / "pets", 4, 150, size=(200, 160))


def start(pets: Path, out: Path, *formats: str) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(pets), str(out), *formats]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def run(pets: Path, out: Path, *formats: str) -> None:
    process = start(pets, out, *formats)
    assert process.wait() == 0
    assert verify(out).problems == []
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name]


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Wait until a file is there, or the process is gone."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.002)


def kill_and_run_again(pets: Path, out: Path, cuts: int, longest: float, *formats: str) -> None:
    """Kill conversions at random moments of their writing until some were cut; then finish one.

    Each begins upon what the one before it left.
    """
    random = np.random.default_rng(cuts)
    done = 0
    for _ in range(4 * cuts):
        process = start(pets, out, *formats)
        wait_for(out.parent / ".out.partial" / "train-00000.tar", process)
        time.sleep(random.uniform(0, longest))
        process.kill()
        process.wait()
        if out.exists():
            assert verify(out).problems == []
            shutil.rmtree(out)
        else:
            done += 1
        if done == cuts:
            return run(pets, out, *formats)
    raise AssertionError(f"only {done} conversions were cut")


def test_killed_at_random_moments(pets, tmp_path):
    kill_and_run_again(pets, tmp_path / "out", 2, 0.2, "dali")


@pytest.mark.slow
def test_killed_at_ten_random_moments(pets, tmp_path):
    kill_and_run_again(pets, tmp_path / "out", 10, 0.6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number, pets, tmp_path):
    out = tmp_path / "out"
    command = ["convert", str(pets), str(out), "--format", "dali", "--size", "64", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fastssl", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A test that runs in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(tmp_path / ".out.partial" / "train-00000.tar", process)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == 128 + number
    assert b"Traceback" not in told
    assert list(tmp_path.iterdir()) == []


def test_workers_do_not_outlive_a_killed_conversion(pets, tmp_path):
    import psutil

    process = start(pets, tmp_path / "out", "dali")
    wait_for(tmp_path / ".out.partial" / "train-00000.tar", process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert len(workers) == 2
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert len(gone) == 2 and not alive


def test_a_folder_is_complete_or_absent(tmp_path):
    with pytest.raises(KeyError), building(tmp_path / "deep" / "out") as folder:
        (folder / "file").write_text("half")
        raise KeyError
    assert list((tmp_path / "deep").iterdir()) == []
    with building(tmp_path / "out") as folder:
        (folder / "file").write_text("whole")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "whole"


def test_what_a_killed_process_left_is_removed_and_never_mixed(tmp_path):
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "old").write_text("old")
    (tmp_path / ".out.lock").touch()
    with building(tmp_path / "out") as folder:
        (folder / "new").write_text("new")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_place_that_is_taken_is_refused_with_both_ways_out(tmp_path):
    (tmp_path / "out").mkdir()
    with building(tmp_path / "out"):  # an empty folder is free
        pass
    (tmp_path / "out" / "file").touch()
    with pytest.raises(ConfigError, match="not empty") as caught, building(tmp_path / "out"):
        pass
    assert "another OUT" in caught.value.fix and "rm -r" in caught.value.fix
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"), building(tmp_path / "file"):
        pass


def test_two_conversions_into_one_place(tmp_path):
    with building(tmp_path / "out") as folder:
        with pytest.raises(ConfigError, match="another process"), building(tmp_path / "out"):
            pass
        (folder / "file").touch()
    with building(tmp_path / "out", wait=True) as nothing:
        assert nothing is None


def test_a_full_disk_and_a_place_one_may_not_write(tmp_path):
    with pytest.raises(ResourceError, match="no room"), building(tmp_path / "out"):
        raise OSError(28, os.strerror(28))
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot be written"), building(tmp_path / "file" / "x"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_store_already_there_is_left_alone(pets, data):
    before = (data / "digits" / "dataset.json").read_bytes()
    from fastssl.conversion import convert

    with pytest.raises(ConfigError, match="not empty"):
        convert("digits", progress=False)
    assert (data / "digits" / "dataset.json").read_bytes() == before
    assert open_store(data / "digits").name == "digits"
