"""Dead data threads, a reader that hangs, a file that is cut short, a clock that jumps."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.prefetch import Ring, StalledError
from tests import runs
from tests.faults import fault_points
from tests.installed import each, needs

ROOT = Path(__file__).parents[2]


def at_read(batch: int, action: Callable[[], object]) -> None:
    """Do something in the loader's thread before it reads its `batch`-th batch.

    An evaluation reads in the main thread, at a time that the loader's reads do not depend on.
    """
    from pipelines.readers.resident import ResidentReader

    real = ResidentReader.read
    seen = 0

    def read(self: Any, indices: Any, out: Any) -> None:
        nonlocal seen
        if threading.current_thread() is not threading.main_thread():
            seen += 1
            if seen == batch:
                action()
        real(self, indices, out)

    ResidentReader.read = read  # type: ignore[method-assign]


def hang_at(batch: int, patience: float) -> None:
    """Let the reader stop giving images; from then on the loader waits for `patience` seconds.

    Before that it waits for as long as a batch takes. When the reader hangs, all batches before
    are in the ring: each is there at once, or never comes.
    """
    from pipelines.loader import loader

    hung = threading.Event()

    def hang() -> None:
        hung.set()
        threading.Event().wait()

    real = Ring._wait

    def wait(self: Any) -> Any:
        while self._ready.empty() and not hung.wait(0.01):
            pass
        return real(self)

    at_read(batch, hang)
    Ring._wait = wait  # type: ignore[method-assign]
    loader.PATIENCE = patience


def fail_at(batch: int, error: BaseException) -> None:
    """Let the reader fail in its thread."""

    def fail() -> None:
        raise error

    at_read(batch, fail)


def test_a_hung_reader_is_reported_of_and_the_run_goes_on_later(whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("hung reader"):
        before = fault_points.quiet(message, partial(hang_at, 6, 0.5))
        assert runs.train(out, before=before) == 5, message.read_text()
        text = message.read_text()
        assert "ResidentReader produced no batch: nothing arrived for 0.5 s" in text
        assert "Traceback" not in text
        assert runs.last(out)["trip"]["step"] == 3
        assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
            message.read_text()
        )
        runs.assert_same_run(whole, out)


def hang_and_be_stopped(batch: int) -> None:
    """Let the reader stop giving images, and the process get SIGTERM while it waits for them.

    The signal is sent by the consumer, once the reader hangs and no batch is left in the ring.
    """
    hung = threading.Event()

    def hang() -> None:
        hung.set()
        threading.Event().wait()

    real = Ring._wait

    def wait(self: Any) -> Any:
        while self._ready.empty() and not hung.wait(0.01):
            pass
        if self._ready.empty():
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self)

    at_read(batch, hang)
    Ring._wait = wait  # type: ignore[method-assign]


def test_a_signal_during_a_stall_saves_and_stops_at_once(whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("signal while the reader hangs"):
        before = fault_points.quiet(message, partial(hang_and_be_stopped, 6))
        # Without the signal, the loader would give up after ten minutes, and the run end with 5.
        assert runs.train(out, before=before) == 143, message.read_text()
        assert "Traceback" not in message.read_text()
        assert runs.last(out)["trip"]["step"] == 5
        assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
            message.read_text()
        )
        runs.assert_same_run(whole, out)


@pytest.mark.parametrize(
    ("error", "code"), [(OSError(5, "Input/output error"), 3), (MemoryError(), 5)], ids=str
)
def test_a_data_thread_that_dies(error, code, whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("dead data thread"):
        before = fault_points.quiet(message, partial(fail_at, 6, error))
        assert runs.train(out, before=before) == code, message.read_text()
        assert "Traceback" not in message.read_text()
        assert runs.last(out)["trip"]["step"] == 3
        assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
            message.read_text()
        )
        runs.assert_same_run(whole, out)


def cut_after(step: int, path: Path, reader: str) -> None:
    """Cut a file short after a step has begun, between two reads of the file.

    A reader looks at the size of its file and then reads; to cut the file between the two would
    be SIGBUS. So it is cut in the reader's thread, just before a look, while no other one reads.
    """
    from pipelines.store.records import Stored

    begun, reading = threading.Event(), threading.RLock()
    real = Stored._refuse_truncated

    def look(self: Any, *shards: Any) -> None:
        if begun.is_set() and path in self.files:
            os.truncate(path, 4096)
        real(self, *shards)

    runs.before_step(step, begun.set)
    Stored._refuse_truncated = look  # type: ignore[method-assign]
    one_at_a_time(Stored, "get", reading)
    if reader == "ffcv":
        from pipelines.readers.ffcv import FfcvReader

        one_at_a_time(FfcvReader, "read", reading)


def one_at_a_time(owner: Any, name: str, lock: threading.RLock) -> None:
    """Let no two threads be in functions that share a lock."""
    real = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        with lock:
            return real(*arguments, **named)

    setattr(owner, name, called)


def cut_while_loading(path: Path) -> None:
    """Cut a file short when it is mapped and its first images are asked for."""
    from pipelines.store.records import Stored

    fault_points.at_call(Stored, "get", 1, partial(os.truncate, path, 4096))


@pytest.mark.parametrize(
    ("reader", "file", "kept"),
    [
        *each(("dali", "train-00000.tar", 3), ("resident", "train-00000.tar", 0)),
        pytest.param("ffcv", "train.beton", 3, marks=[needs("ffcv"), pytest.mark.faults]),
    ],
)
def test_a_file_that_is_cut_short_while_it_is_mapped(
    digits_in_all_formats, tmp_path, tally, reader, file, kept
):
    store, out, message = tmp_path / "digits", tmp_path / "run", tmp_path / "message"
    shutil.copytree(digits_in_all_formats, store)
    path = store / file
    act = partial(cut_after, 4, path, reader) if kept else partial(cut_while_loading, path)
    words = [f"store={store}", f"reader={reader}", "steps=24"]
    with tally("file cut short"):
        code = runs.train(out, *words, before=fault_points.quiet(message, act))
        text = message.read_text()
        assert code == 3, f"{code}: {text}"  # -7 is SIGBUS
        assert f"{path} was cut short while it was read: it has 4,096 bytes" in text
        assert "restore the store from a copy" in text and "Traceback" not in text
        if kept:
            assert runs.last(out)["trip"]["step"] >= kept
        shutil.copy(digits_in_all_formats / file, path)
        again = runs.train(out, *words, resume=bool(kept), before=fault_points.quiet(message))
        assert again == 0, message.read_text()
        assert runs.last(out)["trip"]["step"] == 24


def test_a_ring_gives_up_on_a_thread_that_hangs_and_leaves_it():
    hangs, stuck = threading.Event(), threading.Event()

    def produce(take):
        take()
        yield 0
        hangs.set()
        stuck.wait()

    rescue = threading.Timer(60, stuck.set)  # else a ring that waits for its thread never ends
    rescue.start()
    hung = Ring(produce, list, ahead=2, patience=0.05)
    try:
        assert hangs.wait(60)  # then the first item is there, however busy the machine is
        assert next(hung) == 0
        with pytest.raises(StalledError, match=r"0\.05 s"):
            next(hung)
        hung.close()
        assert not stuck.is_set(), "the ring waited for its thread"
        assert hung._thread.is_alive()
    finally:
        rescue.cancel()
        stuck.set()


def test_a_ring_notices_a_thread_that_is_gone(monkeypatch):
    monkeypatch.setattr(Ring, "_run", lambda self: None)
    gone = Ring(lambda take: iter(()), list, ahead=1, patience=1)
    gone._thread.join(60)
    with pytest.raises(StalledError, match="ended by itself"):
        next(gone)


def jump() -> None:
    """Let the wall clock jump back and forth by years at every look."""
    real, calls = time.time, [0]

    def wild() -> float:
        calls[0] += 1
        return real() + (-1) ** calls[0] * 1e8

    time.time = wild


def test_a_clock_that_jumps_changes_nothing(whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("clock that jumps by years"):
        words = ["tensorboard=true", "max_time=600"]
        assert runs.train(out, *words, before=fault_points.quiet(message, jump)) == 0, (
            message.read_text()
        )
        runs.assert_same_run(whole, out)
        assert 0 < runs.last(out)["trip"]["seconds"] < 600


def test_durations_are_taken_from_clocks_that_do_not_jump():
    for path in [*(ROOT / "fastssl").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "time":
                owner = node.value
                assert not (isinstance(owner, ast.Name) and owner.id == "time"), path
