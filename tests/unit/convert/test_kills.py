"""A conversion that is killed or interrupted leaves no half store, and the next one succeeds."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pipelines.convert.destination import building
from pipelines.errors import ConfigError, ResourceError
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.image_files import write_folder
from tests.installed import INSTALLED_FORMATS
from tests.process_output import PATIENCE, Listener

ROOT = Path(__file__).parents[3]

# The command, held in the middle of its work: at the N-th call of a function it prints "held" and
# waits for a signal. Arguments: OWNER NAME N, then those of the command.
HELD = """
import sys
import threading
from pkgutil import resolve_name
from fastssl import cli
from tests.faults import fault_points

def hold():
    print("\\nheld", flush=True)
    threading.Event().wait()

owner, name, number = sys.argv[1:4]
fault_points.at_call(resolve_name(owner), name, int(number), hold)
sys.argv[1:4] = []
cli.main()
"""
# The same, interrupted at its fifth write.
INTERRUPTED = """
import os
import signal
fault_points.at_call(
    resolve_name("pipelines.convert.tar:TarWriter"), "_write", 5,
    lambda: os.kill(os.getpid(), signal.SIGINT),
)
cli.main()
"""
Moment = tuple[str, str, int]
WRITES: list[Moment] = [("pipelines.convert.tar:TarWriter", "_write", n) for n in range(1, 70, 3)]
MOMENTS: list[Moment] = [
    *WRITES,
    ("pipelines.convert.driver", "_check_bad", 1),  # all images are written, files are being sealed
    ("pipelines.store.manifest", "render", 1),
    ("os", "rename", 1),  # the store is complete, but not in its place
]


@pytest.fixture(scope="module")
def pets(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("kills") / "pets", 4, 150, size=(200, 160))


def words(pets: Path, out: Path, formats: str) -> list[str]:
    """Return the arguments of a conversion."""
    given = ["convert", str(pets), str(out), "--size", "64", "--workers", "2"]
    return [*given, "--test-fraction", "0.2", "--format", formats]


@contextmanager
def held(pets: Path, out: Path, moment: Moment, formats: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a conversion and give its process when it is held at a moment of its writing."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, *map(str, moment), *words(pets, out, formats)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        # A test that runs in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        Listener(process, process.stdout).line("held")
        assert (out.parent / ".out.partial" / "train-00000.tar").exists() and not out.exists()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def end(process: subprocess.Popen, number: int) -> str:
    """Send a signal to a conversion; return what it printed since it was held."""
    process.send_signal(number)
    return process.communicate(timeout=PATIENCE)[0].decode()


def kill_and_run_again(pets: Path, out: Path, cuts: int, formats: str) -> None:
    """Kill conversions at random moments of their writing; then finish one.

    Each begins upon what the one before it left.
    """
    random = np.random.default_rng(cuts)
    for place in random.choice(len(MOMENTS), cuts, replace=False):
        with held(pets, out, MOMENTS[place], formats) as process:
            end(process, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert not out.exists() and (out.parent / ".out.partial").exists()
    command = [sys.executable, "-m", "fastssl", *words(pets, out, formats)]
    subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE)
    assert verify(out).problems == []
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name]


def test_killed_at_random_moments(pets, tmp_path):
    kill_and_run_again(pets, tmp_path / "out", 2, "dali")


@pytest.mark.slow
def test_killed_at_ten_random_moments(pets, tmp_path):
    kill_and_run_again(pets, tmp_path / "out", 10, ",".join(INSTALLED_FORMATS))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number, pets, tmp_path):
    with held(pets, tmp_path / "out", WRITES[5], "dali") as process:
        message = end(process, number)
    assert process.returncode == 128 + number, message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_second_interrupt_does_not_disturb_the_cleaning_up(pets, tmp_path):
    """The process is held where it removes the half store, and interrupted again there."""
    # Held until its stdin is closed, which is after the signal was sent.
    program = HELD.replace("threading.Event().wait()", "sys.stdin.read()")
    program = program.replace("cli.main()", INTERRUPTED)
    moment = ("shutil", "rmtree", "2")  # the first call removes what a killed process left
    process = subprocess.Popen(
        [sys.executable, "-c", program, *moment, *words(pets, tmp_path / "out", "dali")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    Listener(process, process.stdout).line("held")
    message = end(process, signal.SIGINT)
    assert process.returncode == 130, message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


def test_workers_do_not_outlive_a_killed_conversion(pets, tmp_path):
    import psutil

    with held(pets, tmp_path / "out", WRITES[5], "dali") as process:
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()  # not for the end of its output: the workers have inherited that
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
    from fastssl.api import convert

    with pytest.raises(ConfigError, match="not empty"):
        convert("digits", progress=False)
    assert (data / "digits" / "dataset.json").read_bytes() == before
    assert open_store(data / "digits").name == "digits"
