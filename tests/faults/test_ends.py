"""Divergence and memory that runs out: the right code, the right words, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import threading
from functools import partial

import pytest
import torch

from tests import runs
from tests.faults import fault_points


def poison_at(step: int) -> None:
    """Let the loss of a step be no number."""
    from fastssl.engine import loop

    real = loop.backward
    seen = 0

    def backward(run, batch):
        nonlocal seen
        seen += 1
        if seen == step:
            batch.images.fill_(float("nan"))
        return real(run, batch)

    loop.backward = backward


def test_divergence_stops_with_4_and_keeps_what_was_before(whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("diverged (a loss that is no number)"):
        before = fault_points.quiet(message, partial(poison_at, 5))
        assert runs.train(out, before=before) == 4, message.read_text()
        text = message.read_text()
        assert "not finite at step 5 (learning rate 0.0" in text and "largest logit" in text
        assert "Traceback" not in text and text.strip().splitlines()[-1].startswith("  fix:")
        assert runs.last(out)["trip"]["step"] == 3
        summary = json.loads((out / "summary.json").read_text())
        assert (summary["status"], summary["exit"]) == ("failed", 4)
        assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
            message.read_text()
        )
        runs.assert_same_run(whole, out)


def run_out_at(step: int, error: BaseException) -> None:
    """Let an allocation of a step fail."""
    from fastssl.engine import loop

    def fail() -> None:
        raise error

    fault_points.at_call(loop, "backward", step, fail)


FULL = pytest.mark.faults
ALLOCATOR = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
SHORT = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    pytest.param(RuntimeError(ALLOCATOR), marks=FULL),
    pytest.param(MemoryError(), marks=FULL),
]


@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_out_of_memory_names_the_batch_and_the_keys(error, whole, tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("out of memory"):
        before = fault_points.quiet(message, partial(run_out_at, 5, error))
        assert runs.train(out, before=before) == 5, message.read_text()
        text = message.read_text()
        assert "out of memory with batch=10 and ratio=2" in text and "accumulate" in text
        assert "Traceback" not in text
        assert json.loads((out / "summary.json").read_text())["exit"] == 5
        assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
            message.read_text()
        )
        runs.assert_same_run(whole, out)


def limited(extra: int) -> None:
    """Let this process have only so much more memory, for real."""
    import resource
    from pathlib import Path

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@FULL
def test_memory_that_really_runs_out(tmp_path, tally):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("out of memory"):
        words = ["batch=100", "ratio=10", "labels=100", "model=wrn-28-2"]
        before = fault_points.quiet(message, partial(limited, 900 << 20))
        assert runs.train(out, *words, before=before) == 5, message.read_text()
        assert "out of memory with batch=100 and ratio=10" in message.read_text()


def signal_twice(step: int, number: int) -> None:
    """Send a signal before a step and, while the checkpoint is being written, a second."""
    from fastssl.engine import checkpoint, loop

    def again() -> None:  # one thread writes all checkpoints: the one before is on the disk
        os.kill(os.getpid(), number)
        threading.Event().wait()

    fault_points.at_call(checkpoint, "write_atomic", 2, again)
    fault_points.at_call(loop, "train_step", step, lambda: os.kill(os.getpid(), number))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=FULL)]
)
def test_a_second_signal_stops_at_once_with_the_checkpoint_before(
    number, code, whole, tmp_path, tally
):
    out, message = tmp_path / "run", tmp_path / "message"
    with tally("a second signal while saving"):
        before = fault_points.quiet(message, partial(signal_twice, 5, number))
        words = ["eval_every=8", "eval_every_late=8"]
        assert runs.train(out, *words, before=before) == code, message.read_text()
        assert runs.last(out)["trip"]["step"] == 3
        assert runs.train(out, *words, resume=True, before=fault_points.quiet(message)) == 0
        runs.assert_same(runs.last(whole)["model"], runs.last(out)["model"], "model")
