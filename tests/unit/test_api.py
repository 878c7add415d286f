"""The Python API: light to import, its examples true."""

import doctest
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastssl
from fastssl import api
from fastssl.errors import ConfigError
from fastssl.inference import predictor
from pipelines.store.store import open_store
from tests import ranked, runs


def test_import_takes_few_modules_and_no_package_of_others() -> None:
    program = (
        "import sys; before = set(sys.modules); import fastssl; "
        "assert 'train' in dir(fastssl); print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    packages = {name.partition(".")[0] for name in imported}
    assert packages - sys.stdlib_module_names == {"fastssl", "pipelines"}
    assert len(imported) < 60, "importing fastssl takes next to no time"  # torch has 1,500 modules


def test_every_name_is_there_and_no_module_hides_one() -> None:
    for name in fastssl.__all__:
        assert getattr(fastssl, name) is not None
    folder = Path(fastssl.__file__).parent
    for name in fastssl.__all__:
        assert name == "__version__" or callable(getattr(fastssl, name))
        assert not (folder / name).exists() and not (folder / f"{name}.py").exists(), name
    with pytest.raises(AttributeError, match="nothing"):
        _ = fastssl.nothing


@pytest.mark.parametrize("subject", ["nothing", "measure", "photos", "", "../step"])
def test_a_subject_that_does_not_exist_is_an_error(subject: str) -> None:
    with pytest.raises(ConfigError, match="there is nothing to profile named"):
        fastssl.profile(subject)


@pytest.mark.parametrize("subject", ["step", "train", "plan", "views"])
def test_an_option_that_a_subject_does_not_have_is_an_error(subject: str) -> None:
    with pytest.raises(ConfigError, match="has no option 'nothing'"):
        fastssl.profile(subject, nothing=1)


def test_options_reach_a_subject_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr("fastssl.profiling.step.run", lambda options: seen.update(vars(options)))
    fastssl.profile("step", model="wrn-10-1", batch=4)
    assert (seen["model"], seen["batch"], seen["size"]) == ("wrn-10-1", 4, 32)


def test_the_examples_of_the_docstrings_run(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(trained)
    shutil.copytree(data / "digits", tmp_path / "digits_store")  # features are written into it
    digit = open_store(data / "digits").image("test", 0)
    Image.fromarray(np.asarray(digit)).save(tmp_path / "digit.png")
    monkeypatch.chdir(tmp_path)
    tried = 0
    for module in (api, predictor):
        results = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
        assert results.failed == 0
        tried += results.attempted
    assert tried > 15


def test_errors_are_exported_and_name_arguments_instead_of_options(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fastssl.ConfigError) as caught:
        fastssl.train("digits", out=trained)
    assert caught.value.fix == "add resume=True to go on with it, or take another out="
    assert "--" not in str(caught.value)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "net.py").touch()
    (tmp_path / "mine.yaml").write_text("model: net.py:build\n")
    with pytest.raises(fastssl.UserError) as caught:
        fastssl.draw_views(tmp_path / "mine.yaml")
    assert "add trust_code=True to run it" in caught.value.fix


@pytest.mark.parametrize(
    ("fix", "expected"),
    [
        (
            "add --rerun-changed, or take another --out",
            "add rerun_changed=True, or take another out=",
        ),
        ("leave them out with --on-error skip", "leave them out with on_error=skip"),
        ("type --jobs 1 or more", "type jobs=1 or more"),
    ],
)
def test_options_in_a_message_become_arguments(fix: str, expected: str) -> None:
    @api.speaks_python
    def fail() -> None:
        raise ConfigError("something is wrong", fix)

    with pytest.raises(ConfigError) as caught:
        fail()
    assert caught.value.fix == expected


def test_objects_describe_themselves(trained: Path, data: Path) -> None:
    assert repr(fastssl.load(trained)).startswith(f"<Predictor of {trained}: ")
    assert "10 classes" in repr(fastssl.load(trained))
    shown = repr(open_store(data / "digits"))
    assert shown == f"<Store {data / 'digits'}: 1,437 train, 360 test images, 10 classes>"


def train_by_the_api(rank: int, out: str) -> None:
    settings = dict(word.split("=") for word in runs.TINY)
    summary = fastssl.train("digits", out=out, **{**settings, "steps": 2})
    assert summary["steps"] == 2 and summary["status"] == "finished"


def test_every_rank_gets_the_summary(data: Path, tmp_path: Path) -> None:
    started = ranked.start(2, train_by_the_api, str(tmp_path / "run"))
    assert ranked.wait(started) == [0, 0]
