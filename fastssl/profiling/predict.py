"""The rate of predict on files of photographs, against the loop that everybody writes first.

The plain loop opens a picture with Pillow, puts it through torchvision's transforms and asks the
model, one picture at a time, with the same weights and as many threads. Both must say the same.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import fastssl
from fastssl.errors import ConfigError, DataError
from fastssl.inference.predictor import Predictor
from fastssl.profiling.measure import Measured, environment, interleave
from pipelines.sources.scan import Scan


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    folder: str | None = None
    """Photographs in class folders."""
    pictures: int = 1_000
    """Files to predict, those of the folder again and again."""
    size: int = 32
    """Side of the pictures as the model sees them."""
    model: str = "wrn-28-2"
    """Network."""
    steps: int = 20
    """Training steps before; enough that answers differ from picture to picture."""
    repetitions: int = 5
    """Counted rounds; one more warms up."""


def run(options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = _options({**(options or {}), **more})
    assert asked.folder is not None
    found = list(Scan(Path(asked.folder)).images())
    if not found:
        raise DataError(f"{asked.folder} holds no pictures", "give a folder that does")
    files = [found[place % len(found)] for place in range(asked.pictures)]
    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as name:
        model = _train(asked, Path(name))
        said: dict[str, list[str]] = {}
        cases = {
            "fastssl": _timed("fastssl", said, lambda: _ours(model, files)),
            "plain loop": _timed("plain loop", said, lambda: _plain(model, files)),
        }
        measured = interleave(cases, asked.repetitions)
    return _record(asked, measured, said, model)


def _options(given: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"predict has no option {name!r}", f"take: {', '.join(sorted(known))}"
            )
    asked = Options(**given)
    if asked.folder is None:
        raise ConfigError("predict is measured on photographs", "give folder=FOLDER_OF_CLASSES")
    if min(asked.pictures, asked.size, asked.steps, asked.repetitions) < 1:
        raise ConfigError(
            "predict is measured with positive numbers",
            "type pictures=1000 size=32 steps=20 repetitions=5",
        )
    return asked


def _train(asked: Options, folder: Path) -> Predictor:
    """Train a little on the pictures themselves, quietly."""
    settings: dict[str, Any] = {
        "model": asked.model,
        "labels": "all",
        "batch": 20,
        "steps": asked.steps,
    }
    settings |= {"lr": 0.05, "ema": 0.5, "bn_momentum": 0.3, "tensorboard": False}
    settings |= {"eval_every": asked.steps, "eval_every_late": asked.steps}
    assert asked.folder is not None
    with contextlib.redirect_stderr(io.StringIO()):
        fastssl.convert(asked.folder, folder / "store", size=asked.size, formats=("dali",))
        settings["store"] = str(folder / "store")
        fastssl.train("own", algorithm="supervised", out=folder / "run", **settings)
    return fastssl.load(folder / "run")


def _timed(
    name: str, said: dict[str, list[str]], work: Callable[[], list[str]]
) -> Callable[[], float]:
    def case() -> float:
        started = time.perf_counter()
        said[name] = work()
        return len(said[name]) / (time.perf_counter() - started)

    return case


def _ours(model: Predictor, files: list[str]) -> list[str]:
    answers = (one.logits for one in model.files(files))
    return [model.prediction(row).label for row in answers if row is not None]


@torch.inference_mode()
def _plain(model: Predictor, files: list[str]) -> list[str]:
    from torchvision import transforms

    prepared = model.preprocessing
    prepare = transforms.Compose(
        [
            transforms.Resize(prepared.stored, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(prepared.stored),
            transforms.ToTensor(),
            transforms.Normalize(prepared.mean, prepared.std),
        ]
    )
    answers = []
    for path in files:
        with Image.open(path) as picture:
            images = prepare(picture.convert("RGB"))[None]
        answers.append(model.classes[int(model.model(images).argmax())])
    return answers


def _record(
    asked: Options, measured: Mapping[str, Measured], said: dict[str, list[str]], model: Predictor
) -> dict[str, Any]:
    pairs = list(zip(said["fastssl"], said["plain loop"], strict=True))
    ours = measured["fastssl"].median
    return {
        "what": "predict",
        "environment": environment(),
        "settings": {
            "pictures": asked.pictures,
            "size": asked.size,
            "model": asked.model,
            "threads": torch.get_num_threads(),
        },
        "results": [
            {
                "name": name,
                "rate": round(case.median, 1),
                "unit": "pictures/s",
                "spread": round(case.spread, 1),
                "busy": round(case.busy, 2),
            }
            for name, case in measured.items()
        ],
        "ratio": {"plain loop": round(ours / measured["plain loop"].median, 2)},
        "same": sum(one == other for one, other in pairs) / len(pairs),
        "labels": len(set(said["fastssl"])),
    }
