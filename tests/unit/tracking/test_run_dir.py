"""Whose a run folder is, and what a signal does to the process that writes it."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
import yaml

from fastssl import api
from fastssl.config.resolve import load
from fastssl.engine import checkpoint, failures, launch
from fastssl.engine.signals import SIGNALS, Stop
from fastssl.errors import ConfigError, ResourceError
from fastssl.tracking.metrics import MetricsLog
from fastssl.tracking.run_dir import LOCK, RunFolder
from tests.process_output import PATIENCE


def claimed(path):
    folder = RunFolder(path)
    folder.claim(resume=False)
    return folder


def test_a_folder_of_other_things_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    for resume in (False, True):
        with pytest.raises(ConfigError, match="no run of fastssl"):
            RunFolder(tmp_path).claim(resume)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_run_that_began_while_the_lock_was_waited_for_is_seen(tmp_path, monkeypatch):
    real = RunFolder._acquire_lock

    def late(self):
        (tmp_path / "config.yaml").write_text("data: digits\n")  # by a run that ended just now
        real(self)

    monkeypatch.setattr(RunFolder, "_acquire_lock", late)
    folder = RunFolder(tmp_path)
    with pytest.raises(ConfigError, match="is not empty"):
        folder.claim(resume=False)
    folder.release()


def test_who_may_not_write_checkpoints_is_reported_at_once(tmp_path):
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom fastssl.tracking.run_dir import RunFolder\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: RunFolder(Path(sys.argv[1])).claim(True)\n"
        "except Exception as error: print(error.exit_code, error.what)"
    )
    place = tmp_path / "run"
    (place / "checkpoints").mkdir(parents=True)
    (place / "checkpoints").chmod(0o555)
    place.chmod(0o777)
    tmp_path.chmod(0o755)
    # By a relative path: a folder further up may be closed to other users, and it is not meant.
    done = subprocess.run(
        [sys.executable, "-c", program, "run"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout == "5 run can't be written: Permission denied\n"


def test_a_run_whose_folder_was_replaced_writes_nothing_into_the_new_one(tmp_path):
    old = claimed(tmp_path / "run")
    record, writer = MetricsLog(old, False, 0), checkpoint.Writer(old)
    record.write("train", 1, {})
    old.path.rename(tmp_path / "moved")
    new = claimed(tmp_path / "run")
    new.config.write_text("data: digits\n")
    with pytest.raises(ResourceError, match="another run has begun"):
        record.write("train", 2, {})
    writer.save(checkpoint.step_name(2), {})
    with pytest.raises(ResourceError, match="another run has begun"):
        writer.wait()
    failures.write_failure(old, 0, ResourceError("what", "fix"), 1)
    writer.close()
    record.close()
    found = sorted(path.name for path in new.path.rglob("*"))
    assert found == [LOCK, "checkpoints", "config.yaml"]
    old.release()
    new.release()


def test_a_lock_that_somebody_deleted_stops_nobody(tmp_path):
    folder = claimed(tmp_path)
    (tmp_path / LOCK).unlink()
    folder.check_ours()
    folder.release()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("pretrained=runs/x", "type pretrained=null to"),
        ("algorithm=fixmatch", "type algorithm=flexmatch to"),
        ("labels=50", "type labels=40 to"),
        ("nesterov=false", "type nesterov=true to"),
    ],
)
def test_the_setting_to_go_on_with_can_be_typed_as_it_is_reported(word, message, tmp_path):
    folder = RunFolder(tmp_path)
    begun = load("digits", [])
    folder.config.write_text(yaml.safe_dump(begun.as_dict()))
    with pytest.raises(ConfigError, match="was started with") as caught:
        launch.same_run(load("digits", [word]), folder)
    assert message in caught.value.fix
    again = caught.value.fix.split()[1]
    assert launch.same_run(load("digits", [word, again]), folder).as_dict() == begun.as_dict()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out of memory"),
        (RuntimeError("can't start new thread"), "no more threads"),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error\nmore"), "ECC error"),
    ],
)
def test_what_the_machine_refuses_is_reported_in_two_lines(error, message):
    with (
        pytest.raises(ResourceError, match=message) as caught,
        failures.out_of_memory(load("digits")),
    ):
        raise error
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), torch.AcceleratorError("device-side assert triggered")]
)
def test_a_bug_is_not_taken_for_the_machine(error):
    with pytest.raises(RuntimeError), failures.out_of_memory(load("digits")):
        raise error


HANGS = """
import ctypes, os, signal, sys, threading
from fastssl.engine.signals import Stop
numbers = [getattr(signal, name) for name in sys.argv[1:]]
counted = threading.Event()
real = os.write
def write(*given):  # of the thread that counts the signals: it announces the first
    real(*given)
    counted.set()
os.write = write
def send():
    os.kill(os.getpid(), numbers[0])
    counted.wait()  # two equal signals that arrive together are one
    os.kill(os.getpid(), numbers[1])
with Stop(announce=True):
    threading.Thread(target=send).start()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)  # the second never comes back
"""


@pytest.mark.parametrize(("names", "code"), [(["SIGTERM"] * 2, 143), (["SIGTERM", "SIGINT"], 130)])
def test_a_second_signal_ends_even_a_library_that_hangs(names, code):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, *names],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.count("a second signal stops at once") == 1


HANGUP = """
import os, signal, sys
from fastssl.engine.signals import Stop
# Not as inherited: these tests may run under nohup themselves.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
with Stop() as stop:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGHUP)
print("flag", int(stop.signal))
"""


def test_a_job_in_the_background_of_a_script_heeds_sigint():
    # The shell of a script ignores SIGINT for what it starts with `&`.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signal == signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("how", "flag"), [("terminal", 1), ("nohup", 0)])
def test_a_lost_terminal_asks_to_save_once_and_nohup_ignores_it(how, flag):
    # The kernel and the shell both send SIGHUP, and the second must not end the run unsaved.
    done = subprocess.run(
        [sys.executable, "-c", HANGUP, how], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, f"flag {flag}\n"), done.stderr


def open_files():
    """Return what the descriptors of this process stand for; every pipe has a name of its own."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has just closed it
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def test_one_signal_sets_the_flag_and_everything_is_given_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Stop() as stop:
        thread, pipe = stop._thread, os.readlink(f"/proc/self/fd/{stop._pipe}")
        assert thread.is_alive() and pipe in open_files()  # the name of both ends
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert not thread.is_alive() and pipe not in open_files()


def test_a_finished_run_is_finished_whatever_became_of_its_checkpoints(trained, tmp_path):
    for harm in (lambda path: path.unlink(), lambda path: path.write_bytes(b"damaged")):
        out = shutil.copytree(trained, tmp_path / str(len(list(tmp_path.iterdir()))))
        for path in checkpoint.files(RunFolder(out)):
            harm(path)
        before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
        api.train(out / "config.yaml", out=out, resume=True)
        assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
