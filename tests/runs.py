"""Runs for tests: started in processes forked from one that has torch already, killed for real."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastssl.engine import checkpoint
from fastssl.tracking.run_dir import RunFolder
from tests.process_output import PATIENCE

TINY = [
    "model=wrn-10-1",
    "batch=10",
    "ratio=2",
    "steps=8",
    "checkpoint_every=3",
    "log_every=2",
    "eval_every=4",
    "eval_every_late=2",
    "threads=1",
    "loader_threads=1",
    "eval_batch=360",
    "tensorboard=false",
    "compile=off",
]
TIMES = {"seconds", "speed/images_per_s", "speed/data_wait"}  # what may differ between equal runs
TRIP_TIMES = {"train_seconds", "seconds", "waited"}

_server = multiprocessing.get_context("forkserver")
# All that a run imports on its way, so that a forked one begins at once.
_server.set_forkserver_preload(
    [
        "fastssl.cli.command",
        "fastssl.engine.launch",
        "fastssl.algorithms.flexmatch",
        "pipelines.views.kernel_cpu",
        "pipelines.views.sample",
        "pipelines.readers.resident",
        "sklearn.metrics",
        "torch._dynamo",
    ]
)


Before = Callable[[], object]  # what a run's process does before anything else


def train(
    out: Path,
    *words: str,
    resume: bool = False,
    kill_at: int | None = None,
    before: Before | None = None,
) -> int:
    """Train tiny digits in a process of its own; return its exit code, negative for a signal."""
    return ended(start(out, *words, resume=resume, kill_at=kill_at, before=before))


def event() -> Any:
    """Return an event that a run's process can share."""
    return _server.Event()


def start(
    out: Path,
    *words: str,
    resume: bool = False,
    kill_at: int | None = None,
    before: Before | None = None,
) -> Any:
    """Start a training and return its process."""
    arguments = ["train", "digits", *TINY, *words, "--out", str(out)]
    return command(*arguments, *(["--resume"] if resume else []), kill_at=kill_at, before=before)


def command(*words: str, kill_at: int | None = None, before: Before | None = None) -> Any:
    """Start any verb of the command and return its process."""
    arguments = (list(words), kill_at, before, os.environ.get("FASTSSL_DATA"))
    child = _server.Process(target=_work, args=arguments)
    child.start()
    return child


@dataclass(frozen=True)
class Done:
    """The end of a command."""

    code: int
    stdout: str
    stderr: str


def finish(folder: Path, *words: Any, before: Before | None = None) -> Done:
    """Run any verb with `folder` as the working folder; return what it printed."""
    files = [folder.with_name(f"{folder.name}.{name}") for name in ("stdout", "stderr")]
    code = ended(command(*map(str, words), before=partial(_enter, folder, files, before)))
    return Done(code, *(file.read_text() for file in files))


def _enter(folder: Path, files: list[Path], before: Before | None) -> None:
    os.chdir(folder)
    for stream, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    if before is not None:
        before()


def ended(child: Any) -> int:
    """Wait for a process and return its exit code."""
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError("the run hangs")
    return int(child.exitcode)


def _work(words: list[str], kill_at: int | None, before: Before | None, data: str | None) -> None:
    if data:
        os.environ["FASTSSL_DATA"] = data
    if before is not None:
        before()
    if kill_at is not None:
        _die_before(kill_at)
    from fastssl.cli import command as cli

    sys.argv = ["fastssl", *words]
    cli.main()


def _die_before(step: int) -> None:
    """Kill this process when it is about to take a step."""
    before_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def before_step(step: int, action: Callable[[], None]) -> None:
    """Do something in this process when it is about to take a step."""
    from fastssl.engine import loop

    real = loop.train_step

    def train_step(learner: Any, batch: Any, now: int, *others: Any) -> Any:
        if now == step:
            action()
        return real(learner, batch, now, *others)

    loop.train_step = train_step


def last(out: Path) -> dict[str, Any]:
    """Return the newest valid checkpoint of a run."""
    content = checkpoint.newest(RunFolder(out), print)
    assert content is not None
    return content


def metrics(out: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    """Compare two runs bit by bit: weights, averages, momenta, marks, best, history, metrics."""
    a, b = last(one), last(other)
    for part in ("model", "ema", "optimizer", "scaler", "state", "quality"):
        assert_same(a[part], b[part], part)
    for content in (a, b):
        content["trip"] = {k: v for k, v in content["trip"].items() if k not in TRIP_TIMES}
    assert a["trip"] == b["trip"]
    assert metrics(one) == metrics(other)
    best = [checkpoint.best(RunFolder(path))["ema"] for path in (one, other)]
    assert_same(best[0], best[1], "best")


def assert_same(a: Any, b: Any, where: str) -> None:
    """Compare nested containers of tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}[{place}]")
    else:
        assert a == b, where


def whole_content(step: int, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the content of a small checkpoint in which nothing is missing."""
    sizes = {"size": [8, 8], "mean": [0.5] * 3, "std": [0.5] * 3, "stored": 8, "resize": "squash"}
    return {
        "model": weights,
        "ema": dict(weights),
        "optimizer": {},
        "scaler": {},
        "state": {},
        "quality": torch.zeros(3),
        "trip": {"step": step},
        "config": {},
        "store": "fingerprint",
        "classes": ["a", "b"],
        "preprocessing": sizes,
    }
