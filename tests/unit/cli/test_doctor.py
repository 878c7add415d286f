"""What `doctor` reports about this machine, and about one that lacks something."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastssl.cli import doctor
from fastssl.cli.command import app
from fastssl.errors import DataError
from pipelines.extras import install_line


def table(rows: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {row["what"]: row for row in rows}


def test_versions_devices_and_readers_are_listed() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    found = table(json.loads(done.stdout))
    for name in ("fastssl", "torch", "numba", "memory", "reader resident", "data folder"):
        assert found[name]["state"] not in ("", "missing")
    assert "GPU" in found or "cuda:0" in found


def test_what_is_missing_comes_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "import_problem", lambda module: "is not installed")
    found = table(doctor.rows())
    for name, extra, purpose in (
        ("reader ffcv", "ffcv", "streams a .beton file"),
        ("reader dali", "dali", "streams tar shards"),
        ("models of timm", "timm", "many more networks"),
        ("export onnx", "export", "writes .onnx files"),
        ("run onnx", "export", "checks .onnx files"),
        ("export safetensors", "export", "writes .safetensors files"),
    ):
        assert found[name]["state"].startswith(purpose)
        assert found[name]["state"].endswith(" is not installed")
        assert found[name]["do"] == install_line(extra)
    assert found["HEIC images"]["do"] == "pip install pillow-heif"


def test_a_package_that_is_broken_comes_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "cannot be imported: libopencv_core.so.406: cannot open shared object file"
    monkeypatch.setattr(doctor, "import_problem", lambda module: reason)
    found = table(doctor.rows())["reader ffcv"]
    assert found["state"].endswith(f"; ffcv {reason}")
    assert found["do"] == install_line("ffcv", reason)


def test_the_self_test_runs_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    results = doctor.self_test()
    names = [row["what"] for row in results]
    assert names == ["test convert", "test train", "test evaluate", "test predict"]
    assert all("FAILED" not in row["state"] and row["do"] is None for row in results)
    assert capsys.readouterr().out == ""


def test_a_failure_is_reported_and_ends_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: str, out: Path, **options: object) -> None:
        raise DataError("the disk is gone", "buy another")

    monkeypatch.setattr("fastssl.api.convert", broken)
    (row,) = doctor.self_test()
    assert "FAILED: the disk is gone" in row["state"] and row["do"] == "buy another"
    assert CliRunner().invoke(app, ["doctor", "--test"]).exit_code == 1
