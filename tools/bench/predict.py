"""Our predictions against the usual loop: Pillow, torchvision's transforms, one image at a time.

Both use the same weights and the same number of threads. The share of equal answers is recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fastssl.inference.predictor import Predictor
from fastssl.profiling import predict
from fastssl.profiling.measure import Case, interleave, rate
from fastssl.profiling.subjects import PredictOptions


def run(options: PredictOptions) -> dict[str, Any]:
    """Measure both; return the record."""
    files = predict.find_files(options)
    labels: dict[str, list[str]] = {}

    def case(name: str, work: Callable[[Predictor, list[str]], list[str]]) -> Case:
        def count() -> int:
            labels[name] = work(model, files)
            return len(labels[name])

        return lambda: rate(count)

    with tempfile.TemporaryDirectory(prefix="fastssl-profile-") as folder:
        model = predict.train_model(options, Path(folder))
        cases = {
            "fastssl": case("fastssl", predict.predict_labels),
            "plain loop": case("plain loop", plain_loop),
        }
        measured = interleave(cases, options.repetitions)
    record = predict.record(options, measured)
    ratio = measured["fastssl"].median / measured["plain loop"].median
    pairs = list(zip(labels["fastssl"], labels["plain loop"], strict=True))
    record["ratio"] = {"plain loop": round(ratio, 2)}
    record["same"] = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
    record["labels"] = len(set(labels["fastssl"]))
    return record


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
