"""Where a run's process can be made to die or to fail: done to itself, before it begins."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn


def die() -> NoReturn:
    """End this process as the kernel's out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")


def at_call(module: Any, name: str, number: int, action: Callable[[], object] = die) -> None:
    """Do something to the process when a function is called for the `number`-th time."""
    real = getattr(module, name)
    seen = 0

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            action()
        return real(*arguments, **named)

    setattr(module, name, called)


def before_step(number: int) -> None:
    """Die before a step of this life."""
    from fastssl.engine import loop

    at_call(loop, "train_step", number)


def within_step(number: int) -> None:
    """Die after the gradient, before the weights move."""
    from fastssl.engine.optim import NonFiniteCheck

    at_call(NonFiniteCheck, "update", number)


def after_weights(number: int) -> None:
    """Die between the weights and their average."""
    from fastssl.engine.optim import Ema

    at_call(Ema, "update", number)


def in_evaluation(number: int) -> None:
    """Die while the model is evaluated."""
    from fastssl.engine import evaluation

    at_call(evaluation, "compute_metrics", number)


def after_evaluation(number: int) -> None:
    """Die when the figures are known and not yet written."""
    from fastssl.engine.progress import TrainingProgress

    at_call(TrainingProgress, "add_evaluation", number)


def half_line(number: int) -> None:
    """Die with half a line of metrics on the disk."""
    from fastssl.tracking.metrics import MetricsLog

    real = MetricsLog.write
    seen = 0

    def metrics(self: Any, kind: str, step: int, values: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            self._metrics.write(f'{{"step": {step}, "kind": "tra')
            self._metrics.flush()
            die()
        real(self, kind, step, values)

    MetricsLog.write = metrics  # type: ignore[method-assign]


def half_checkpoint(number: int) -> None:
    """Die with half a checkpoint in its temporary file."""
    from fastssl.engine import checkpoint

    real = checkpoint.write_atomic
    seen = 0

    def write(path: Path, data: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            path.with_name(f".{path.name}.new").write_bytes(data[: len(data) // 2])
            die()
        real(path, data)

    checkpoint.write_atomic = write


def before_rename(number: int) -> None:
    """Die when a whole file is written and not yet in its place."""
    at_call(os, "replace", number)


def before_sync(number: int) -> None:
    """Die before a file's bytes are known to be on the disk."""
    at_call(os, "fsync", number)


def before_prune(number: int) -> None:
    """Die between the rename of a checkpoint and the pruning of the older ones."""
    from fastssl.engine.checkpoint import Writer

    at_call(Writer, "_prune", number)


def before_summary(number: int) -> None:
    """Die between the last checkpoint and the summary."""
    from fastssl.engine import launch

    at_call(launch, "finish", number)


PLACES = {
    "during steps": [before_step, within_step, after_weights],
    "during a checkpoint's write": [half_checkpoint, before_sync, before_rename],
    "between rename and prune": [before_prune],
    "during evaluation": [in_evaluation, after_evaluation],
    "in a line of metrics, before the summary": [half_line, before_summary],
}


def told_in(file: Path) -> None:
    """Send what this process prints into a file."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(number, 1)
    os.dup2(number, 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115


def small_files(size: int) -> None:
    """Let this process write no file larger than `size`: it gets EFBIG."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def both(*actions: Callable[[], object]) -> None:
    """Do several things to the process."""
    for action in actions:
        action()


def quiet(file: Path, *actions: Callable[[], object]) -> Callable[[], object]:
    """Return what sends the output into a file and then does the other things."""
    return partial(both, partial(told_in, file), *actions)


def interrupt_at(step: int) -> None:
    """Send this process SIGTERM before a step."""
    from fastssl.engine import loop

    at_call(loop, "train_step", step, lambda: os.kill(os.getpid(), signal.SIGTERM))


def before_sealing(number: int) -> None:
    """Die before a written file of a store is summed."""
    from pipelines.store import manifest

    at_call(manifest, "digest", number)


def before_manifest(number: int) -> None:
    """Die when all is written but the manifest."""
    from pipelines.store import manifest

    at_call(manifest, "render", 1)


def before_move(number: int) -> None:
    """Die when a store is whole and not yet in its place."""
    at_call(os, "rename", 1)


def after_pictures(number: int) -> None:
    """Die after so many images."""
    from pipelines.convert import worker

    at_call(worker, "load", number)


CONVERSION = [before_sync, before_sealing, before_manifest, before_move, after_pictures]


def at_rename(number: int, error: OSError) -> None:
    """Let the `number`-th rename fail, and all after it."""
    real = os.replace
    seen = 0

    def replace(*arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen >= number:
            raise error
        real(*arguments)

    os.replace = replace  # type: ignore[assignment]
