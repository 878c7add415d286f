"""The verb `doctor`: what this machine can run, what is missing, and a short self-test."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastssl.errors import UserError
from fastssl.tracking import environment
from fastssl.tracking.console import messages
from pipelines.extras import import_problem, install_line
from pipelines.readers import READERS
from pipelines.store.store import default_place

# what -> the module that it needs, the extra that installs it, and what it is for
EXTRAS = {
    "models of timm": ("timm", "timm", "many more networks, most of them pretrained"),
    "export onnx": ("onnxscript", "export", "writes .onnx files"),
    "run onnx": ("onnxruntime", "export", "checks .onnx files after they are written"),
    "export safetensors": ("safetensors", "export", "writes .safetensors files"),
    "HEIC images": ("pillow_heif", None, "reads the photos of many phones (.heic)"),
}
TINY: dict[str, Any] = {
    "algorithm": "flexmatch",
    "model": "wrn-10-1",
    "steps": 6,
    "batch": 10,
    "ratio": 2,
    "eval_every": 6,
    "log_every": 6,
    "tensorboard": False,
}


def rows() -> list[dict[str, Any]]:
    """Return the rows of the table: what, state, what to do."""
    machine = environment.describe()
    commit = f", commit {machine['commit']}" if machine["commit"] else ""
    found = [
        row("fastssl", machine["fastssl"] + commit),
        row("python", f"{machine['python']}, {machine['system']}"),
        row("processor", f"{machine['cores']} cores, {machine['processor']}"),
        row("memory", f"{machine['memory_gb']} GB, load {machine['load_1m']}"),
    ]
    for name in ("torch", "torchvision", "numba", "numpy", "pillow"):
        number = environment.installed_version(name)
        found.append(row(name, number or "missing", "" if number else f"pip install {name}"))
    found += devices()
    readers = {f"reader {r.name}": (r.package, r.name, r.summary) for r in READERS.values()}
    for name, (module, extra, purpose) in (readers | EXTRAS).items():
        problem = import_problem(module) if module else None
        if problem is None:
            found.append(row(name, "ready"))
        else:
            line = install_line(extra, problem) if extra else "pip install pillow-heif"
            found.append(row(name, f"{purpose}; {module} {problem}", line))
    return [*found, data_folder()]


def row(what: str, state: str, advice: str = "") -> dict[str, Any]:
    """Return one line of the table."""
    return {"what": what, "state": state, "do": advice or None}


def devices() -> Iterator[dict[str, Any]]:
    """Yield a row for every GPU, or one that says there is none."""
    import torch

    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without"
        yield row("GPU", f"none that torch can use ({built})", "nothing: auto uses the CPU")
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        yield row(
            f"cuda:{number}", f"{about.name}, {about.total_memory / 2**30:.0f} GB, {precision}"
        )


def data_folder() -> dict[str, Any]:
    """Return the row on the folder of converted data and its free space."""
    place = default_place("").absolute()
    above = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(above).free / 2**30
    return row("data folder", f"{place}, {free:.0f} GB free", "" if free > 1 else "free some space")


def self_test() -> list[dict[str, Any]]:
    """Convert, train, evaluate and predict digits in a temporary folder; about 10 s."""
    from fastssl import api

    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fastssl-doctor-") as folder:
        place = Path(folder)

        def convert() -> str:
            store = api.convert("digits", place / "digits", progress=False)
            return f"{store.splits['train'].count:,} images, {' and '.join(store.formats)}"

        def train() -> str:
            with messages(quiet=True):
                done = api.train("digits", store=str(place / "digits"), out=place / "r", **TINY)
            return f"{done['steps']} steps, {done['images_per_s']:,.0f} images/s"

        def evaluate() -> str:
            return f"{api.evaluate(place / 'r')['error']:.1f} % error, after so few steps"

        def predict() -> str:
            import numpy as np

            prediction = api.load(place / "r").predict(np.zeros((16, 16, 3), np.uint8))
            return f"a black image is {prediction.label!r}"  # type: ignore[union-attr]

        for step in (convert, train, evaluate, predict):
            began = time.monotonic()
            try:
                state, advice = step(), ""
            except UserError as error:
                state, advice = f"FAILED: {error.what}", error.fix
            spent = time.monotonic() - began
            results.append(row(f"test {step.__name__}", f"{state} ({spent:.1f} s)", advice))
            if advice:
                break
    return results
