"""The rate of predictions on image files, with a model trained for a few steps.

The peer is the usual loop: Pillow, torchvision's transforms, one image at a time. Both use the same
weights and the same number of threads. The share of equal answers is recorded.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fastssl.config.resolve import load
from fastssl.engine.launch import run_training
from fastssl.errors import DataError
from fastssl.inference.predictor import Predictor
from fastssl.profiling.measure import Case, interleave, make_record, rate
from pipelines.convert import Options as Conversion
from pipelines.convert import convert
from pipelines.convert.open import open_source
from pipelines.sources.scan import Scan
from tools.bench.subjects import PredictOptions


def run(options: PredictOptions) -> dict[str, Any]:
    """Measure both; return the record."""
    files = find_files(options)
    labels: dict[str, list[str]] = {}

    def case(name: str, work: Callable[[Predictor, list[str]], list[str]]) -> Case:
        def count() -> int:
            labels[name] = work(model, files)
            return len(labels[name])

        return lambda: rate(count)

    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as folder:
        model = train_model(options, Path(folder))
        cases = {
            "fastssl": case("fastssl", predict_labels),
            "plain loop": case("plain loop", plain_loop),
        }
        measured = interleave(cases, options.repetitions)
    ratio = measured["fastssl"].median / measured["plain loop"].median
    pairs = list(zip(labels["fastssl"], labels["plain loop"], strict=True))
    return make_record(
        "predict",
        {
            "images": options.images,
            "size": options.size,
            "model": options.model,
            "threads": torch.get_num_threads(),
        },
        [case.row(name, "images/s", busy=round(case.busy, 2)) for name, case in measured.items()],
        {"plain loop": round(ratio, 2)},
        same=sum(ours == theirs for ours, theirs in pairs) / len(pairs),
        labels=len(set(labels["fastssl"])),
    )


def find_files(options: PredictOptions) -> list[str]:
    """Return `options.images` files; those of the folder are repeated."""
    found = list(Scan(Path(options.folder)).images())
    if not found:
        raise DataError(f"{options.folder} holds no images", "give a folder that does")
    return [found[index % len(found)] for index in range(options.images)]


def train_model(options: PredictOptions, folder: Path) -> Predictor:
    """Convert the folder, train for a few steps without output, and open the model."""
    store, run = folder / "store", folder / "run"
    settings = {
        "algorithm": "supervised",
        "store": str(store),
        "model": options.model,
        "labels": "all",
        "batch": 20,
        "steps": options.steps,
        "eval_every": options.steps,
        "eval_every_late": options.steps,
        "tensorboard": False,
        # so that a few steps are enough to predict several classes
        "lr": 0.05,
        "ema": 0.5,
        "bn_momentum": 0.3,
    }
    with contextlib.redirect_stderr(io.StringIO()):
        how = Conversion(size=options.size)
        convert(open_source(options.folder, how), store, how)
        run_training(load("own", settings), run, resume=False, dry_run=False)
    return Predictor(run)


def predict_labels(model: Predictor, files: list[str]) -> list[str]:
    """Return the predicted class of each file, as `fastssl predict` does."""
    outputs = (one.logits for one in model.files(files))
    return [model.prediction(row).label for row in outputs if row is not None]


@torch.inference_mode()
def plain_loop(model: Predictor, files: list[str]) -> list[str]:
    """Return the predicted class of each file."""
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
    labels = []
    for path in files:
        with Image.open(path) as image:
            images = prepare(image.convert("RGB"))[None]
        labels.append(model.classes[int(model.model(images).argmax())])
    return labels
