"""The verb `predict`: labels for files, folders, lists and stores, as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastssl.errors import ConfigError, DataError
from fastssl.inference.inputs import files, is_store
from fastssl.inference.predictor import Outcome, Prediction, Predictor
from pipelines.files import open_atomic
from pipelines.store.index import escape
from pipelines.store.store import open_store

SHOWN = 20  # pictures in the table, and unreadable files told by name
HEADER = ["path", "label", "probability", "top5"]


@dataclass(slots=True)
class Tally:
    """What was seen: pictures and summed probability of each label, and the unreadable files."""

    count: dict[str, int] = field(default_factory=dict)
    probability: dict[str, float] = field(default_factory=dict)
    first: list[dict[str, Any]] = field(default_factory=list)
    bad: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Count the pictures that got a label."""
        return sum(self.count.values())

    def add(self, path: str, pseudo_label: Prediction) -> None:
        """Count one picture."""
        self.count[pseudo_label.label] = self.count.get(pseudo_label.label, 0) + 1
        self.probability[pseudo_label.label] = (
            self.probability.get(pseudo_label.label, 0) + pseudo_label.probability
        )
        if len(self.first) < SHOWN:
            self.first.append({"picture": escape(path), **short(pseudo_label)})

    def rows(self) -> list[dict[str, Any]]:
        """Return the summary, the most frequent label first."""
        order = sorted(self.count, key=lambda label: (-self.count[label], label))
        return [
            {
                "label": label,
                "pictures": self.count[label],
                "share": round(self.count[label] / self.total, 4),
                "mean probability": round(self.probability[label] / self.count[label], 4),
            }
            for label in order
        ]


def short(pseudo_label: Prediction) -> dict[str, Any]:
    """Return the columns of one picture in the table."""
    second = pseudo_label.top5[1] if len(pseudo_label.top5) > 1 else ("-", 0.0)
    return {
        "label": pseudo_label.label,
        "probability": round(pseudo_label.probability, 4),
        "second": f"{second[0]} {second[1]:.4f}",
    }


def outcomes(
    model: Predictor, words: list[str], split: str, lines: Iterable[str], batch: int | None
) -> Iterator[Outcome]:
    """Answer for everything that was named, in order."""
    plain: list[str] = []
    for word in words:
        if not is_store(word):
            plain.append(word)
            continue
        yield from model.files(files(plain, lines), batch)
        plain = []
        yield from in_store(model, word, split)
    yield from model.files(files(plain, lines), batch)


def in_store(model: Predictor, path: str, split: str) -> Iterator[Outcome]:
    """Answer for one split of a store; a picture goes by the path it came from."""
    store = open_store(path)
    if split not in store.splits:
        raise ConfigError(
            f"{path} has no split {split!r}", f"type --split {' or '.join(store.splits)}"
        )
    names = iter(store.source_paths(split))
    for logits in model.store(store, split, np.arange(store.splits[split].count)):
        for row in logits:
            yield Outcome(next(names), row)


def write_csv(file: IO[str]) -> Callable[[str, Prediction], None]:
    """Return what writes a line of CSV; `top5` is JSON in its cell."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)

    def write(path: str, pseudo_label: Prediction) -> None:
        top = json.dumps([[label, round(share, 6)] for label, share in pseudo_label.top5])
        writer.writerow([path, pseudo_label.label, f"{pseudo_label.probability:.6f}", top])

    return write


def write_lines(file: IO[str]) -> Callable[[str, Prediction], None]:
    """Return what writes a line of JSON."""

    def write(path: str, pseudo_label: Prediction) -> None:
        content = {
            "path": path,
            "label": pseudo_label.label,
            "probability": pseudo_label.probability,
        }
        file.write(json.dumps({**content, "top5": pseudo_label.top5}) + "\n")

    return write


def open_out(stack: ExitStack, path: Path) -> IO[str]:
    """Open a file to write, `-` for stdout; it takes its place when the stack is left in peace."""
    return sys.stdout if str(path) == "-" else stack.enter_context(open_atomic(path))


def predict(
    model: Predictor,
    words: list[str],
    *,
    table: Path | None = None,
    lines: Path | None = None,
    split: str = "test",
    batch: int | None = None,
    stdin: Iterable[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Tally:
    """Answer for everything that was named, writing as it goes; return the tally."""
    tally, began = Tally(), time.monotonic()
    with ExitStack() as stack:
        writers = [write_csv(open_out(stack, table))] if table else []
        writers += [write_lines(open_out(stack, lines))] if lines else []
        for outcome in outcomes(model, words, split, stdin, batch):
            if outcome.logits is None:
                tally.bad.append({"path": escape(outcome.path), "why": outcome.why})
                continue
            pseudo_label = model.prediction(outcome.logits)
            tally.add(outcome.path, pseudo_label)
            for write in writers:
                write(outcome.path, pseudo_label)
            progress(tally.total)
        if not tally.total:
            shown = "".join(f"\n    {one['path']}: {one['why']}" for one in tally.bad[:SHOWN])
            told = f"no picture could be read{':' if shown else ''}{shown}"
            raise DataError(told, "look at IMAGES")
    tally.seconds = time.monotonic() - began
    return tally
