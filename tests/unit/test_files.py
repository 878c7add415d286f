"""Atomic writes, syncs and locks on file systems that refuse some of them."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from pipelines.errors import DataError, ResourceError
from pipelines.files import Lock, is_locked, read_json, sync, write_atomic, write_json


def refuse(code):
    def call(*_):
        raise OSError(code, os.strerror(code))

    return call


def test_a_directory_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        return real(descriptor) if os.readlink(f"/proc/self/fd/{descriptor}") == file else no()

    file, no = str(tmp_path / ".a.new"), refuse(errno.EINVAL)
    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "a", b"all of it")
    assert (tmp_path / "a").read_bytes() == b"all of it"


def test_a_file_that_cannot_be_synced_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        write_atomic(tmp_path / "a", b"half of it")
    assert not list(tmp_path.iterdir())
    (tmp_path / "b").touch()
    with pytest.raises(OSError, match="Input/output"):
        sync(tmp_path / "b")


def test_a_lock_is_exclusive_until_it_is_released(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    lock = Lock(path)
    assert is_locked(path)
    with pytest.raises(BlockingIOError):
        Lock(path)
    lock.release(remove=True)
    assert not path.exists()
    Lock(path).release()


def test_a_killed_process_holds_no_lock(tmp_path):
    path = tmp_path / "lock"
    program = (
        "import os, sys, pathlib; from pipelines.files import Lock;"
        "lock = Lock(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)])
    assert done.returncode == -9 and path.exists()
    Lock(path).release()


def test_a_lock_notices_that_its_file_was_replaced(tmp_path):
    path = tmp_path / "lock"
    lock = Lock(path)
    assert not lock.replaced()
    path.unlink()
    assert not lock.replaced() and lock.replaced(if_missing=True)
    path.touch()
    assert lock.replaced()
    lock.release()


def test_a_lock_is_taken_again_if_its_file_was_removed_meanwhile(tmp_path, monkeypatch):
    path, real = tmp_path / "lock", fcntl.flock

    def slow(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()  # what the previous holder does before it closes the file
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    lock = Lock(path)
    assert path.exists() and not lock.replaced(if_missing=True)
    lock.release()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, code):
    monkeypatch.setattr(fcntl, "flock", refuse(code))
    with pytest.raises(ResourceError, match="cannot be locked"):
        Lock(tmp_path / "lock")


def test_json_is_read_up_to_a_limit(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1, 2]})
    assert read_json(path) == {"a": [1, 2]}
    size = path.stat().st_size
    assert read_json(path, limit=size) == {"a": [1, 2]}
    with pytest.raises(DataError, match=f"larger than {size - 1} bytes"):
        read_json(path, limit=size - 1)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000])
def test_what_is_not_json_is_named_in_one_line(tmp_path, data):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.json is not JSON") as caught:
        read_json(path)
    assert len(str(caught.value).splitlines()) == 2 and len(caught.value.what) < 400
