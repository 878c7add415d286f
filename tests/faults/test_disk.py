"""A full disk, a folder that may not be written or is gone: exit 5, the last checkpoint loads."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import runs
from tests.faults import fault_points

LONG = [
    "steps=400",
    "checkpoint_every=1",
    "log_every=1",
    "eval_every=400",
    "eval_every_late=400",
    "compile=off",
]


FULL = pytest.mark.faults


def mounted(place: Path, options: str) -> bool:
    """Mount a small file system in memory, where we may."""
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB: some checkpoints fit, the run does not."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mounted(place, "size=3m"):
        pytest.skip("only root can mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def stopped(
    out: Path, message: Path, *words: str, action: Callable[[], object] | None = None
) -> str:
    """Train until the fault stops the run with exit 5 in two lines; return the lines."""
    actions = [action] if action else []
    code = runs.train(out, *words, before=fault_points.quiet(message, *actions))
    text = message.read_text()
    assert code == 5, text
    assert "Traceback" not in text and "error: " in text
    return text


def fill_at(step: int, disk: Path) -> None:
    """Fill a disk before a step."""
    from fastssl.engine import loop

    fault_points.at_call(loop, "train_step", step, lambda: fill(disk))


def test_a_full_disk(small_disk, tmp_path, tally):
    out = small_disk / "run"
    with tally("disk full (a small tmpfs)"):
        text = stopped(out, tmp_path / "message", *LONG, action=partial(fill_at, 5, small_disk))
        assert "No space left" in text
        assert runs.last(out)["trip"]["step"] >= 3
        assert not list((out / "checkpoints").glob(".*.new"))
        (small_disk / "filler").unlink()
        message = tmp_path / "message"
        words = [*LONG, "max_time=0.0001"]
        assert runs.train(out, *words, resume=True, before=fault_points.quiet(message)) == 0


def test_files_that_may_not_grow(tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("file-size limit (EFBIG)"):
        assert runs.train(out, *LONG, "max_time=0.001", before=fault_points.quiet(message)) == 0
        step = runs.last(out)["trip"]["step"]
        before = fault_points.quiet(message, partial(fault_points.small_files, 100_000))
        assert runs.train(out, *LONG, resume=True, before=before) == 5, message.read_text()
        assert "File too large" in message.read_text()
        assert runs.last(out)["trip"]["step"] >= step


def lock_at(step: int, folder: Path) -> None:
    """Make a folder immutable before a step: even root may write no more."""
    from fastssl.engine import loop

    words = ["chattr", "+i", str(folder)]
    fault_points.at_call(loop, "train_step", step, lambda: subprocess.run(words, check=True))


def test_a_folder_that_cannot_be_written_from_the_start(small_disk, tmp_path, tally):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with tally("read-only folder from the start"):
        assert "Read-only" in stopped(small_disk / "run", tmp_path / "message")


def test_a_file_in_the_place_of_the_folder(tmp_path, tally):
    (tmp_path / "run").write_text("mine")
    with tally("a file in the place of the run folder"):
        stopped(tmp_path / "run", tmp_path / "message")
        assert (tmp_path / "run").read_text() == "mine"


@FULL
def test_permission_lost_under_way(tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    probe = tmp_path / "probe"
    probe.mkdir()
    try:
        able = subprocess.run(["chattr", "+i", str(probe)], capture_output=True).returncode == 0
        subprocess.run(["chattr", "-i", str(probe)], capture_output=True)
    except OSError:
        able = False
    if not able:
        pytest.skip("no file here can be made immutable")
    try:
        with tally("permission lost under way (chattr +i)"):
            action = partial(lock_at, 4, out / "checkpoints")
            assert "not permitted" in stopped(out, message, *LONG, action=action)
            assert runs.last(out)["trip"]["step"] >= 1
    finally:
        subprocess.run(["chattr", "-i", str(out / "checkpoints")], capture_output=True)


@FULL
def test_a_disk_that_becomes_read_only(tmp_path, tally, small_disk):
    out, message = small_disk / "run", tmp_path / "message"
    with tally("disk turned read-only under way"):
        # A busy mount can't be turned, so the refusal comes from the call itself.
        action = partial(fault_points.at_rename, 6, OSError(30, "Read-only file system"))
        assert "Read-only" in stopped(out, message, *LONG, action=action)
        assert runs.last(out)["trip"]["step"] >= 1


def test_a_folder_deleted_under_us(tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("run folder deleted under way"):
        text = stopped(out, message, *LONG, action=partial(delete_at, 4, out))
        assert text.count("warning: log.txt") <= 1
    assert not (out / "checkpoints").exists()


def delete_at(step: int, folder: Path) -> None:
    """Delete a folder before a step."""
    from fastssl.engine import loop

    def delete() -> None:
        folder.rename(folder.with_name("deleted"))
        shutil.rmtree(folder.with_name("deleted"), ignore_errors=True)

    fault_points.at_call(loop, "train_step", step, delete)


@pytest.mark.parametrize(
    "kind", ["full", *(pytest.param(k, marks=FULL) for k in ("gone", "a file"))]
)
def test_tensorboard_that_fails_stops_no_training(kind, whole, tmp_path, tally, small_disk):
    out, message = tmp_path / "run", tmp_path / "message"
    action = partial(spoil_board, out, small_disk, kind)
    with tally("TensorBoard or log.txt that fails"):
        before = fault_points.quiet(message, action)
        assert runs.train(out, "tensorboard=true", before=before) == 0, message.read_text()
        text = message.read_text()
        assert text.count("warning: TensorBoard") == 1 and "Traceback" not in text
        runs.assert_same_run(whole, out)


def spoil_board(out: Path, disk: Path, kind: str) -> None:
    """Make TensorBoard's folder unusable."""
    from fastssl.engine import launch

    def spoil() -> None:
        board = out / "tensorboard"
        if kind == "full":
            board.symlink_to(disk, target_is_directory=True)
            fill(disk)
        elif kind == "a file":
            board.write_text("mine")
        else:
            os.symlink(out / "nowhere" / "at" / "all", board)

    fault_points.at_call(launch, "MetricsLog", 1, spoil)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    try:
        with open(disk / "filler", "wb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass
    except OSError:
        pass


def test_a_log_that_fails_stops_no_training(whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("TensorBoard or log.txt that fails"):
        action = partial(spoil_log, out)
        assert runs.train(out, before=fault_points.quiet(message, action)) == 0, message.read_text()
        assert message.read_text().count("warning: log.txt") == 1
        runs.assert_same_run(whole, out)


def spoil_log(out: Path) -> None:
    """Put a folder in the place of the log."""
    from fastssl.engine import launch

    fault_points.at_call(launch, "MetricsLog", 1, lambda: (out / "log.txt").mkdir())


def test_a_terminal_that_is_gone_stops_no_training(whole, tmp_path, tally):
    out = tmp_path / "run"
    with tally("stderr closed under way"):
        assert runs.train(out, before=closed) == 0
        runs.assert_same_run(whole, out)


def closed() -> None:
    """Close the reading end of what stderr writes to."""
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.dup2(writing, 1)
    os.close(reading)
    os.close(writing)


def test_a_store_that_cannot_be_written_is_reported_when_converting(small_disk, tmp_path, tally):
    message = tmp_path / "message"
    fill(small_disk)
    with tally("disk full while converting"):
        words = ["convert", "digits", str(small_disk / "d"), "--format", "dali"]
        child = runs.command(*words, before=fault_points.quiet(message))
        assert runs.ended(child) == 5, message.read_text()
        assert [path.name for path in small_disk.iterdir()] == ["filler"]
