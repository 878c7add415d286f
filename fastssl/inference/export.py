"""The verb `export`: the model as one file to ship, checked as soon as it is written.

    .pt2          a torch.export program; class names and preprocessing inside, as fastssl.json
    .onnx         opset 20, any batch; the same JSON in its metadata under `fastssl`
    .safetensors  the EMA weights; the same JSON in its metadata and beside it as .json

Every program takes float32 [n, 3, height, width], preprocessed as the JSON says, and returns
logits.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastssl.errors import ConfigError, ResourceError, UserError, writing
from fastssl.inference.predictor import Predictor
from fastssl.version import __version__
from pipelines.extras import import_problem, install_line
from pipelines.files import sync

OPSET = 20
TOLERANCE = 1e-4
INSIDE = "fastssl.json"
NEEDS = {
    ".pt2": (),
    ".onnx": ("onnx", "onnxscript", "onnxruntime"),
    ".safetensors": ("safetensors",),
}

Run = Callable[[Tensor], Tensor]


def export(
    run: Path, file: Path, checkpoint: str = "best", *, trust_code: bool = False
) -> dict[str, Any]:
    """Write a run's model to a file; return its format, size and largest difference."""
    check_name(file)
    model = Predictor(run, checkpoint, device="cpu", trust_code=trust_code)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".export-") as folder:
            made = Path(folder) / file.name
            write(model, made)
            difference = verify(model, made)
            for part in sorted(Path(folder).iterdir()):
                os.replace(part, file.parent / part.name)
        sync(file.parent)
    return {
        "file": str(file),
        "format": file.suffix[1:],
        "opset": OPSET if file.suffix == ".onnx" else None,
        "megabytes": round(file.stat().st_size / 1e6, 2),
        "difference": difference,
    }


def check_name(file: Path) -> None:
    """Raise if the suffix is no known format, or if a package of the format is missing."""
    if file.suffix not in NEEDS:
        raise ConfigError(f"no format ends in {file.suffix!r}", f"end in {', '.join(NEEDS)}")
    for name in NEEDS[file.suffix]:
        if problem := import_problem(name):
            raise ResourceError(
                f"{file.suffix} needs {name}, which {problem}", install_line("export", problem)
            )


def describe(model: Predictor) -> dict[str, Any]:
    """Return what a program needs beside the weights: classes, preprocessing, configuration."""
    return {
        "fastssl": __version__,
        "classes": model.classes,
        "preprocessing": asdict(model.preprocessing),
        "input": "float32 [n, 3, height, width]: an image resized to stored x stored by resize "
        "and interpolation, center-cropped to size, divided by 255, minus mean, divided by std",
        "output": "logits [n, classes]",
        "config": model.resolved.as_dict(),
    }


def write(model: Predictor, file: Path) -> None:
    """Write one format."""
    about = json.dumps(describe(model), indent=1)
    if file.suffix == ".safetensors":
        from safetensors.torch import save

        weights = {key: value.contiguous() for key, value in model.content["ema"].items()}
        file.write_bytes(save(weights, metadata={"fastssl": about}))
        file.with_suffix(".json").write_text(about + "\n", encoding="utf-8")
        return
    with warnings.catch_warnings():  # torch's exporters warn about their own internals
        warnings.simplefilter("ignore")
        if file.suffix == ".pt2":
            torch.export.save(trace(model), file, extra_files={INSIDE: about})
        else:
            write_onnx(model, file, about)


def trace(model: Predictor) -> torch.export.ExportedProgram:
    """Trace the network with a batch of any size, in the layout that every runtime supports."""
    network: Any = model.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    batch = torch.export.Dim("batch", min=1, max=65536)
    return torch.export.export(
        network, (sample(model, 2),), dynamic_shapes=({0: batch},), strict=False
    )


def write_onnx(model: Predictor, file: Path, about: str) -> None:
    """Write ONNX with the description in its metadata."""
    import onnx

    program = torch.onnx.export(
        trace(model),
        input_names=["images"],
        output_names=["logits"],
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    content = program.model_proto
    content.metadata_props.add(key="fastssl", value=about)
    onnx.save(content, file)


def sample(model: Predictor, count: int) -> Tensor:
    """Return fixed random inputs of the scale of normalized pixels, [count, 3, H, W]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, *model.preprocessing.size, generator=generator)


def open_exported(file: Path, model: Predictor) -> Run:
    """Open an exported file as a function; plain weights are loaded into a new network."""
    if file.suffix == ".pt2":
        module: Run = torch.export.load(file).module()
        return module
    if file.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])
    from safetensors.torch import load_file

    from fastssl.inference.trained_model import open_model

    return open_model(model.resolved, {**model.content, "ema": load_file(file)}, model.device)


@torch.inference_mode()
def verify(model: Predictor, file: Path) -> float:
    """Compare model and file on two batch sizes; return the largest difference of the logits.

    Raise if it exceeds TOLERANCE.
    """
    run = open_exported(file, model)
    worst = 0.0
    for count in (5, 1):
        images = sample(model, count)
        expected, got = model.model(images), run(images)
        worst = max(worst, float((expected - got).abs().max()))
    if not worst <= TOLERANCE:
        raise UserError(
            f"{file.name} differs from the model by {worst:.3g}, more than {TOLERANCE:g}",
            "nothing was written; try another format, and please report it",
        )
    return worst
