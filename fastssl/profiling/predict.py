"""The rate of predictions on image files, with a model trained for a few steps."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastssl.config.resolve import load
from fastssl.engine.launch import run_training
from fastssl.errors import DataError
from fastssl.inference.predictor import Predictor
from fastssl.profiling.measure import Measured, interleave, make_record, rate
from fastssl.profiling.subjects import PredictOptions
from pipelines.convert import Options as Conversion
from pipelines.convert import convert
from pipelines.convert.open import open_source
from pipelines.sources.scan import Scan


def run(options: PredictOptions) -> dict[str, Any]:
    """Measure our predictions; return the record."""
    files = find_files(options)
    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as folder:
        model = train_model(options, Path(folder))
        cases = {"fastssl": lambda: rate(lambda: len(predict_labels(model, files)))}
        return record(options, interleave(cases, options.repetitions))


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


def record(options: PredictOptions, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the record."""
    return make_record(
        "predict",
        {
            "images": options.images,
            "size": options.size,
            "model": options.model,
            "threads": torch.get_num_threads(),
        },
        [case.row(name, "images/s", busy=round(case.busy, 2)) for name, case in measured.items()],
        {},
    )
