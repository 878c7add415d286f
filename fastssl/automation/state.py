"""What earlier calls of `auto` have begun in its folder, and with which options.

The file auto.json holds an entry for each product (the store, the list of images to label, the
probe, the training), written before the work on it begins. A product that exists is never made
again with other options.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastssl.automation.request import INTERPOLATION, flags, settings
from fastssl.errors import ConfigError, DataError, writing
from pipelines.files import Lock, read_json, write_json

NAME = "auto.json"
LOCK = ".auto.lock"
# What `budget.plan` chooses for the training.
CHOICES = {"batch", "ratio", "steps", "warmup", "log_every"}
CHOICES |= {"eval_every", "eval_every_late", "checkpoint_every"}
# What earlier versions did not write, since it was always the same.
UNWRITTEN = {INTERPOLATION: "bicubic"}
FIX = "free space or permissions there, or take another --out"


class State:
    """The content of auto.json."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.content: dict[str, Any] = {}
        if (out / NAME).exists():
            self.content = read_json(out / NAME)
            if not is_valid(self.content):
                raise DataError(f"{out / NAME} is damaged", "take another --out")

    def record(self, name: str, entry: Any) -> None:
        """Write an entry."""
        self.content[name] = entry
        with writing(self.out, FIX):
            write_json(self.out / NAME, self.content)

    def spent(self) -> float:
        """Return the seconds of the steps that are done."""
        return float(sum(self.content.get("seconds", {}).values()))

    def add_seconds(self, name: str, seconds: float) -> None:
        """Record how long a step took."""
        self.record("seconds", {**self.content.get("seconds", {}), name: round(seconds, 3)})

    def check(self, name: str, options: dict[str, Any], product: Path, *, exists: bool) -> None:
        """Raise if a product exists and was begun with other options."""
        saved = self.content.get(name, {})
        if not exists:
            return
        for key in sorted(saved.keys() | options.keys()):
            old, new = (one.get(key, UNWRITTEN.get(key)) for one in (saved, options))
            if old == new:
                continue
            if key.startswith("content of "):
                what = key.removeprefix("content of ")
                raise ConfigError(
                    f"{product} was made with another content of {what}",
                    "put it back as it was, or take another --out",
                )
            if key == INTERPOLATION:
                raise ConfigError(
                    f"{product} was made for weights of {old} interpolation, not of {new}",
                    "go on with the model that it was made for, or take another --out",
                )
            raise ConfigError(
                f"{product} was made {option(key, old)}, not {option(key, new)}",
                f"type the command {option(key, old)} to go on, or take another --out",
            )


def is_valid(content: Any) -> bool:
    """Return True if `State` can have written this; a file of somebody else may hold anything.

    Only whole numbers are taken from the choices for the training: other settings could name code.
    """
    if not isinstance(content, dict) or not all(isinstance(one, dict) for one in content.values()):
        return False
    seconds, train = content.get("seconds", {}).values(), content.get("train", {})
    chosen = train.items() if set(train) != {"why"} else ()
    return (
        all(type(one) in (int, float) and 0 <= one < math.inf for one in seconds)
        and all(key in CHOICES and type(value) is int for key, value in chosen)
        and (not chosen or "steps" in train)
    )


def option(key: str, value: Any) -> str:
    """Return how an option was typed."""
    if value is None:
        return f"without {key if key.startswith('--') else f'{key}=...'}"
    if key.startswith("--"):
        return f"with {shlex.join(flags({key: value}))}"
    return f"with {shlex.join([str(value)] if key.isupper() else settings({key: value}))}"


@contextmanager
def claimed(out: Path) -> Iterator[State]:
    """Make a folder ours while the block runs, or refuse it; yield what is known about it."""
    with writing(out, FIX):
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        if not (out / NAME).exists() and any(one.name != LOCK for one in out.iterdir()):
            raise ConfigError(f"{out} is not empty", "take another --out")
        try:
            lock = Lock(out / LOCK)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process is writing {out}", "wait for it to end, or take another --out"
            ) from error
    try:
        yield State(out)
    finally:
        lock.release(remove=True)
        if made:
            with suppress(OSError):
                out.rmdir()  # only if the call was refused before it wrote anything
