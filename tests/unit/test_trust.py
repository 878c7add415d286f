"""Code that a run folder names is run only by those who say that they trust it."""

import hashlib
import json
import py_compile
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import fastssl
from fastssl import plugins
from fastssl.algorithms import ALGORITHMS
from fastssl.config.migration import migrate
from fastssl.config.resolve import load
from fastssl.engine.view_sheet import write_sheet
from fastssl.errors import ConfigError, DataError
from fastssl.report import write as write_report
from fastssl.sweep.runner import run as run_sweep
from tests.unit.test_plugins import ALGORITHM, DATA, MODEL, TINY

MARK = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    """A folder with a model, an algorithm and a dataset of one's own."""
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "half.py").write_text(ALGORITHM)
    (tmp_path / "sets.py").write_text(DATA)
    monkeypatch.setattr(ALGORITHMS, "_items", dict(ALGORITHMS._items))
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path / "data"))
    shutil.copytree(data / "digits", tmp_path / "data" / "digits")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(place: Path, name: str, **settings: object) -> Path:
    fastssl.train("digits", out=place / name, **{**TINY, "batch": 10, **settings})
    return place / name


def foreign(run: Path, key: str, suffix: str = "") -> Path:
    """Let a run's config.yaml name a file that leaves a mark when it is executed."""
    evil = run / "evil.py"
    evil.write_text(MARK)
    content = yaml.safe_load((run / "config.yaml").read_text())
    content[key] = f"{evil}{suffix}"
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    return evil


def verbs(run: Path, out: Path) -> dict[str, object]:
    sweep = out / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({"config": str(run), "grid": {"seed": [0]}}))
    return {
        "eval": lambda: fastssl.evaluate(run),
        "load": lambda: fastssl.load(run),
        "label": lambda: fastssl.label(run, "digits", out / "p.csv"),
        "export": lambda: fastssl.export(run, out / "m.pt2"),
        "config": lambda: load(run),
        "file": lambda: load(run / "config.yaml"),
        "train": lambda: fastssl.train(run, out=out / "new"),
        "resume": lambda: fastssl.train(run, out=run, resume=True),
        "views": lambda: write_sheet(load(run), out / "v.png"),
        "sweep": lambda: run_sweep(str(sweep), out=out / "sweep"),
    }


def test_no_verb_executes_the_model_that_a_run_folder_names(place: Path, tmp_path: Path) -> None:
    run = train(place, "run", model="wrn-10-1")
    evil = foreign(run, "model", ":build")
    for name, action in verbs(run, tmp_path).items():
        with pytest.raises(ConfigError) as caught:
            action()
        assert str(evil) in caught.value.what and digest(evil) in caught.value.what, name
        assert "trust" in caught.value.fix, name
    write_report([run], tmp_path / "report.html", None)
    assert not (run / "executed").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("key", ["model", "data", "algorithm"])
def test_no_verb_executes_code_that_is_named_in_bytes(
    place: Path, tmp_path: Path, key: str
) -> None:
    run = train(place, "run", model="wrn-10-1")
    evil = foreign(run, key, ":build")
    content = yaml.safe_load((run / "config.yaml").read_text())
    content[key] = f"{evil}:build".encode()  # YAML writes it as !!binary
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    for action in verbs(run, tmp_path).values():
        with pytest.raises(ConfigError):
            action()
    assert not (run / "executed").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("key", "suffix"), [("algorithm", ""), ("data", ":stripes")])
def test_inference_needs_no_code_of_the_algorithm_or_the_data(
    place: Path, tmp_path: Path, key: str, suffix: str
) -> None:
    run = train(place, "run", model="wrn-10-1")
    foreign(run, key, suffix)
    store = place / "data" / "digits"
    assert 0 <= fastssl.evaluate(run, store=store)["error"] <= 100
    assert fastssl.load(run).predict(np.zeros((16, 16, 3), np.uint8)).label
    assert fastssl.label(run, store, tmp_path / "p.csv")["images"] > 0
    assert fastssl.export(run, tmp_path / "m.pt2")["difference"] < 1e-4
    needing = verbs(run, tmp_path)
    for name in ("config", "file", "train", "resume", "views", "sweep"):
        with pytest.raises(ConfigError, match="names code"):
            needing[name]()
    write_report([run], tmp_path / "report.html", None)
    assert not (run / "executed").exists()


def test_a_run_with_code_of_ones_own_is_evaluated_without_its_algorithm(place: Path) -> None:
    run = train(place, "run", algorithm="half.py", data="sets.py:stripes", labels=10, batch=4)
    for name in ("half.py", "sets.py"):
        (place / name).unlink()
    assert 0 <= fastssl.evaluate(run)["error"] <= 100
    assert fastssl.load(run).resolved.algorithm.name == "half"


def test_cross_fitting_trains_with_code_only_if_it_is_trusted(place: Path, tmp_path: Path) -> None:
    run = train(place, "run", algorithm="half.py", labels=20, batch=4)
    (place / "half.py").unlink()  # the run keeps a copy
    about = {"cross_fit": 2, "floor": 0.01}
    with pytest.raises(ConfigError, match="names code"):
        fastssl.label(run, place / "data" / "digits", tmp_path / "p.csv", **about)
    assert not (run / "cross-fit").exists()
    store, out = place / "data" / "digits", tmp_path / "p.csv"
    done = fastssl.label(run, store, out, trust_code=True, **about)
    assert done["precision"]["models"] == 2


@pytest.mark.parametrize("how", ["link", "copy", "below", "renamed", "bare", "linked folder"])
def test_no_detour_leads_around_the_rule(place: Path, tmp_path: Path, how: str) -> None:
    run = train(place, "run", model="wrn-10-1")
    foreign(run, "algorithm")
    config = run / "config.yaml"
    given = tmp_path / "mine.yaml"
    if how == "link":
        given.symlink_to(config)
    elif how == "copy":
        shutil.copy(config, given)
    elif how == "below":
        (run / "configs").mkdir()
        given = run / "configs" / "mine.yaml"
        given.write_text(f"algorithm: {run / 'evil.py'}\n")
    elif how == "renamed":
        given = run / "other.yaml"
        given.write_text(f"algorithm: {run / 'evil.py'}\n")
    elif how == "bare":  # a folder with nothing else of a run
        given = tmp_path / "bare"
        given.mkdir()
        shutil.copy(run / "evil.py", given)
        (given / "config.yaml").write_text(f"algorithm: {given / 'evil.py'}\n")
    else:  # a configuration of one's own whose code is a run's
        (tmp_path / "code").symlink_to(run)
        given.write_text(f"algorithm: {tmp_path / 'code' / 'evil.py'}\n")
    with pytest.raises(ConfigError, match="names code"):
        load(given)
    assert not list(tmp_path.rglob("executed"))


def test_a_sweep_may_not_pass_on_the_code_of_a_run_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = train(place, "run", model="wrn-10-1")
    (run / "evil.py").write_text(MARK)
    sweep = tmp_path / "sweep.yaml"
    for name in (str(run / "evil.py"), "run/evil.py", "~/run/evil.py"):
        grid = {"config": "digits", "grid": {"algorithm": [name]}}
        sweep.write_text(yaml.safe_dump(grid))
        with pytest.raises(ConfigError, match="names code"):
            run_sweep(str(sweep), out=tmp_path / "out")
    assert not (run / "executed").exists()


def test_a_translated_file_names_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(MARK)
    for key in ("alg", "algorithm"):
        (tmp_path / "theirs.yaml").write_text(f"{key}: evil.py\n")
        with pytest.raises(ConfigError):
            migrate(tmp_path / "theirs.yaml")
    assert not (tmp_path / "executed").exists()


def test_code_that_one_types_or_writes_into_a_file_of_ones_own_is_run(place: Path) -> None:
    (place / "mine.yaml").write_text("algorithm: half.py\n")
    assert load("mine.yaml").algorithm.name == "half"
    assert load("digits", ["algorithm=half.py"]).algorithm.name == "half"
    run = train(place, "run", algorithm="half.py")
    assert load(run, ["algorithm=half.py"]).algorithm.name == "half"


def test_trust_is_reported_with_path_and_hash(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(place, "run", model="net.py:build")
    with pytest.raises(ConfigError, match="names code"):
        fastssl.load(run)
    assert type(fastssl.load(run, trust_code=True).model).__name__ == "Net"
    assert digest(place / "net.py") in caplog.text


def test_a_cached_pyc_is_not_what_runs(tmp_path: Path) -> None:
    file = tmp_path / "mod.py"
    file.write_text(MARK)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(file), invalidation_mode=mode)
    file.write_text("value = 3\n")
    assert plugins.load_file(file).value == 3
    assert not (tmp_path / "executed").exists()


def test_a_pipe_named_as_code_is_not_read(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(ConfigError, match="no such file"):
        plugins.load_file(tmp_path / "pipe.py")


def test_an_edited_file_is_loaded_again_and_a_mended_one_registers(place: Path) -> None:
    broken = place / "broken.py"
    broken.write_text(ALGORITHM.replace('"half"', '"mine"') + "\n1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load("digits", ["algorithm=broken.py"])
    broken.write_text(ALGORITHM.replace('"half"', '"mine"'))
    assert load("digits", ["algorithm=broken.py"]).settings.weight == 0.5
    broken.write_text(ALGORITHM.replace('"half"', '"other"').replace("0.5", "0.75"))
    resolved = load("digits", ["algorithm=broken.py"])
    assert resolved.algorithm.name == "other" and resolved.settings.weight == 0.75


def test_code_is_kept_in_the_run_and_used_as_it_was(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(place, "run", model="net.py:build", algorithm="half.py")
    assert f"next: fastssl eval {run} --trust-code" in capsys.readouterr().err
    hashes = {
        key: digest(place / f"{name}.py") for key, name in (("model", "net"), ("algorithm", "half"))
    }
    kept = {path.name: digest(path) for path in (run / "code").iterdir()}
    assert kept == {f"{key}-{sha[:16]}.py": sha for key, sha in hashes.items()}
    before = fastssl.evaluate(run, trust_code=True)["error"]
    (place / "net.py").write_text(MODEL.replace("relu()", "sigmoid()"))
    assert fastssl.evaluate(run, trust_code=True)["error"] == before
    (place / "net.py").unlink()
    assert fastssl.evaluate(run, trust_code=True)["error"] == before
    (run / "code" / f"model-{hashes['model'][:16]}.py").write_text(MODEL)
    assert fastssl.evaluate(run, trust_code=True)["error"] == before  # the same content
    (place / "half.py").unlink()
    (run / "code" / f"algorithm-{hashes['algorithm'][:16]}.py").unlink()
    assert fastssl.evaluate(run, trust_code=True)["error"] == before  # needs no algorithm
    (run / "code" / f"model-{hashes['model'][:16]}.py").write_text(MARK)
    with pytest.raises(DataError, match="is not the file"):
        fastssl.evaluate(run, trust_code=True)
    assert not (run / "code" / "executed").exists()


def test_the_command_takes_trust_code_and_exits_with_2_without(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastssl.cli.command import main

    run = train(place, "run", model="net.py:build")
    capsys.readouterr()
    for extra, code in ([], 2), (["--trust-code"], 0):
        monkeypatch.setattr(sys, "argv", ["fastssl", "eval", str(run), "--json", *extra])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (code, None if code == 0 else code)
        printed = capsys.readouterr()
        if code:
            assert len(printed.err.splitlines()) == 2 and digest(place / "net.py") in printed.err
        else:
            assert json.loads(printed.out)["run"] == str(run)
