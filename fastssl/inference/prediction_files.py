"""The verb `predict`: labels for files, folders, lists and stores, as CSV or JSON lines."""

from __future__ import annotations

import csv
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastssl.errors import ConfigError, DataError
from fastssl.inference.inputs import files, is_store
from fastssl.inference.predictor import Outcome, Prediction, Predictor, probabilities
from fastssl.inference.store_match import resize_notes
from pipelines.files import open_atomic
from pipelines.store.store import open_store
from pipelines.text import for_csv

SHOWN = 20  # images in the table, and unreadable files listed by name
HEADER = ["path", "label", "probability", "top5"]


@dataclass(slots=True)
class Tally:
    """Counts of a prediction: images and summed probability per label, and unreadable files."""

    count: Counter[str] = field(default_factory=Counter)
    probability: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    first: list[dict[str, Any]] = field(default_factory=list)
    bad: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Return the number of images that got a label."""
        return self.count.total()

    def add(self, path: str, prediction: Prediction) -> None:
        """Add one image."""
        self.count[prediction.label] += 1
        self.probability[prediction.label] += prediction.probability
        if len(self.first) < SHOWN:
            second, share = prediction.top5[1] if len(prediction.top5) > 1 else ("-", 0.0)
            self.first.append(
                {
                    "image": path,
                    "label": prediction.label,
                    "probability": round(prediction.probability, 4),
                    "second": f"{second} {share:.4f}",
                }
            )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per label, the most frequent first."""
        return [
            {
                "label": label,
                "images": images,
                "share": round(images / self.total, 4),
                "mean probability": round(self.probability[label] / images, 4),
            }
            for label, images in sorted(self.count.items(), key=lambda row: (-row[1], row[0]))
        ]


def outcomes(
    model: Predictor,
    arguments: list[str],
    split: str,
    lines: Iterable[str],
    batch: int | None,
    notes: list[str],
) -> Iterator[Outcome]:
    """Yield the outcomes for all arguments, in order; a store is read split-wise, not as files."""
    for stored, group in itertools.groupby(arguments, is_store):
        if stored:
            for path in group:
                yield from in_store(model, path, split)
        else:
            yield from model.files(files(group, lines, notes), batch)


def in_store(model: Predictor, path: str, split: str) -> Iterator[Outcome]:
    """Yield the outcomes for one split of a store; an image is named by its source path."""
    store = open_store(path)
    if split not in store.splits:
        raise ConfigError(
            f"{path} has no split {split!r}", f"type --split {' or '.join(store.splits)}"
        )
    names = iter(store.source_paths(split))
    for logits in model.store(store, split, np.arange(store.splits[split].count)):
        for row in logits:
            yield Outcome(next(names), row)


def open_out(stack: ExitStack, path: Path) -> IO[str]:
    """Open a file to write, `-` for stdout; it replaces `path` if the stack ends well."""
    return sys.stdout if str(path) == "-" else stack.enter_context(open_atomic(path))


def predict(
    model: Predictor,
    arguments: list[str],
    *,
    table: Path | None = None,
    lines: Path | None = None,
    each: bool = False,
    split: str = "test",
    batch: int | None = None,
    stdin: Iterable[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Tally:
    """Predict all arguments, writing each result at once; return the tally.

    `table` is a CSV file, `lines` a file of JSON lines, both with the probability of each class if
    `each`; `progress` is called with the count.
    """
    tally, began = Tally(), time.monotonic()
    with ExitStack() as stack:
        cells = csv.writer(open_out(stack, table), lineterminator="\n") if table else None
        objects = open_out(stack, lines) if lines else None
        if cells:
            columns = [f"p({name})" for name in model.classes] if each else []
            cells.writerow([*HEADER, *columns])
        for path in filter(is_store, arguments):
            tally.notes += resize_notes(model, open_store(path))
        for outcome in outcomes(model, arguments, split, stdin, batch, tally.notes):
            if outcome.logits is None:
                tally.bad.append({"path": outcome.path, "why": outcome.reason})
                continue
            prediction = model.prediction(outcome.logits)
            tally.add(outcome.path, prediction)
            shares = probabilities(outcome.logits).tolist() if each else []
            if cells:
                top = json.dumps([[label, round(share, 6)] for label, share in prediction.top5])
                names = [for_csv(outcome.path), for_csv(prediction.label)]
                numbers = [f"{share:.6f}" for share in shares]
                cells.writerow([*names, f"{prediction.probability:.6f}", top, *numbers])
            if objects:
                content = {"path": outcome.path, **asdict(prediction)}
                if each:
                    content["probabilities"] = dict(zip(model.classes, shares, strict=True))
                objects.write(json.dumps(content) + "\n")
            progress(tally.total)
        if not tally.total:
            shown = "".join(f"\n    {one['path']}: {one['why']}" for one in tally.bad[:SHOWN])
            message = f"no image could be read{':' if shown else ''}{shown}"
            raise DataError(message, "check IMAGES")
    tally.seconds = time.monotonic() - began
    return tally
