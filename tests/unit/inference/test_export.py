"""Exported files: the same answers as the model, checked before they are there at all."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import fastssl
from fastssl.errors import ConfigError, UserError
from fastssl.inference import export
from fastssl.inference.predictor import Predictor
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.store.store import open_store
from tests.installed import each, needs
from tools.bench.export import compare

FORMATS = ("pt2", "onnx", "safetensors")


@pytest.fixture(scope="module")
def model(trained: Path) -> Predictor:
    return fastssl.load(trained)


@pytest.fixture(scope="module", params=each(*FORMATS))
def exported(
    request: pytest.FixtureRequest, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    file = tmp_path_factory.mktemp("exported") / f"m.{request.param}"
    assert 0 <= fastssl.export(trained, file)["difference"] <= 1e-4
    return file


def test_the_top1_on_the_test_set_is_that_of_eval(
    exported: Path, trained: Path, model: Predictor, data: Path
) -> None:
    run = export.open_exported(exported, model)
    store = open_store(data / "digits")
    wrong = 0
    with torch.inference_mode():
        # 97 leaves a last batch of another size
        for images, labels in EvaluationBatches(
            store, "test", np.arange(360), size=(16, 16), batch=97
        ):
            wrong += int((run(images.contiguous()).argmax(dim=1) != labels).sum())
    assert 100 * wrong / 360 == pytest.approx(fastssl.evaluate(trained)["error"], abs=1e-9)


def described(file: Path) -> dict[str, object]:
    if file.suffix == ".pt2":
        inside = {export.INSIDE: ""}
        torch.export.load(file, extra_files=inside)
        return json.loads(inside[export.INSIDE])
    if file.suffix == ".onnx":
        import onnx

        content = onnx.load(file)
        onnx.checker.check_model(content)
        assert [one.version for one in content.opset_import if not one.domain] == [export.OPSET]
        shape = content.graph.input[0].type.tensor_type.shape.dim
        assert shape[0].dim_param and [one.dim_value for one in shape[1:]] == [3, 16, 16]
        return json.loads({one.key: one.value for one in content.metadata_props}["fastssl"])
    assert json.loads(file.with_suffix(".json").read_text())["classes"]
    (length,) = struct.unpack("<Q", file.read_bytes()[:8])
    return json.loads(json.loads(file.read_bytes()[8 : 8 + length])["__metadata__"]["fastssl"])


def test_class_names_and_preprocessing_travel_with_the_file(
    exported: Path, model: Predictor
) -> None:
    about = described(exported)
    assert about["classes"] == model.classes
    assert about["preprocessing"]["mean"] == list(model.preprocessing.mean)
    assert about["preprocessing"]["size"] == [16, 16]
    assert about["preprocessing"]["interpolation"] == "bicubic"
    assert "by resize and interpolation" in str(about["input"])
    assert about["config"]["algorithm"] == "flexmatch"


@needs("safetensors")
def test_a_file_that_differs_is_refused_and_not_left_behind(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = export.write

    def spoiled(model: Predictor, file: Path) -> None:
        key = "classifier.bias"
        model.content["ema"][key] = model.content["ema"][key] + 2e-4
        write(model, file)

    monkeypatch.setattr(export, "write", spoiled)
    with pytest.raises(UserError, match=r"differs from the model by 0\.0002") as error:
        fastssl.export(trained, tmp_path / "m.safetensors")
    assert error.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_names_and_missing_packages_are_reported(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"no format ends in '\.pth'"):
        fastssl.export(trained, tmp_path / "m.pth")
    for problem, line in (
        ("is not installed", 'pip install "fastssl[export]"'),
        ("cannot be imported: no libstdc++", "pip install --force-reinstall --no-deps onnx"),
    ):
        monkeypatch.setattr(export, "import_problem", lambda name, problem=problem: problem)
        with pytest.raises(UserError, match=f"needs onnx, which {re.escape(problem)}") as error:
            fastssl.export(trained, tmp_path / "m.onnx")
        assert error.value.fix.startswith(line)


@needs("onnx", "safetensors")
def test_the_comparison_times_every_format(trained: Path) -> None:
    rows = compare(trained, repetitions=1)
    assert [row["format"] for row in rows] == ["fastssl", *FORMATS]
    assert all(row["images/s"] > 0 for row in rows)
