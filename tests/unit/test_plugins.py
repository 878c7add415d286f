"""Own models, algorithms and datasets from files outside the repository, and from packages."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import fastssl
from fastssl.algorithms import ALGORITHMS
from fastssl.cli.listing import rows
from fastssl.config.resolve import load
from fastssl.engine.build_data import ensure_plugin_store
from fastssl.errors import ConfigError

MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.bn = nn.BatchNorm2d(8)
        self.out = nn.Linear(8, classes)

    def forward(self, x):
        return self.out(self.bn(self.conv(x)).relu().mean(dim=(2, 3)))

def build(classes):
    return Net(classes)

def wrong(classes):
    return "not a network"

def broken(classes):
    return Net(classes, 3)

def bare():
    return Net(3)
"""

ALGORITHM = '''
"""Half: supervised learning at a weight of one's own."""

from __future__ import annotations

from pydantic import Field

from fastssl.algorithms.base import Settings, StepOutput, algorithm


class HalfSettings(Settings):
    weight: float = Field(0.5, gt=0)
    """Weight of the loss."""


@algorithm("half", config=HalfSettings, forwards="1: labelled")
def step(nets, batch, state, config, progress, ranks):
    import torch.nn.functional as F

    loss = config.weight * F.cross_entropy(nets.student(batch.images), batch.labels)
    return StepOutput(loss=loss, metrics={"loss/labeled": loss.detach()})
'''

DATA = """
import numpy as np
from pipelines.sources import Source, SourceSplit, array_chunks

def stripes():
    images = np.zeros((40, 16, 16, 3), np.uint8)
    labels = np.arange(40) % 2
    images[labels == 0, ::2] = 255
    images[labels == 1, :, ::2] = 255
    images += np.arange(40, dtype=np.uint8)[:, None, None, None]

    def split(chosen):
        return SourceSplit(
            len(images[chosen]), 16, lambda: array_chunks(images[chosen], labels[chosen], "s"),
            kept=True,
        )

    return Source(
        name="stripes", class_names=["lying", "standing"],
        splits={"train": split(slice(0, 30)), "test": split(slice(30, 40))}, resize="squash",
    )

def wrong():
    return 3
"""

TINY = {"batch": 4, "ratio": 1, "steps": 4, "eval_every": 4, "eval_every_late": 4, "threads": 1}
TINY |= {"log_every": 4, "checkpoint_every": 2, "tensorboard": False}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files outside the repository, and a registry that forgets them after the test."""
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "half.py").write_text(ALGORITHM)
    (tmp_path / "sets.py").write_text(DATA)
    monkeypatch.setattr(ALGORITHMS, "_items", dict(ALGORITHMS._items))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_three_from_files_train_resume_judge_and_predict(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSSL_DATA", str(outside / "data"))
    settings = {
        "model": "net.py:build",
        "algorithm": "half.py",
        "algo": {"weight": 0.25},
        "data": "sets.py:stripes",
        "labels": 10,
        **TINY,
    }
    summary = fastssl.train("own", out="run", **{**settings, "max_time": 1e-9})
    assert summary["steps"] < 4, "the run was not cut short: there is nothing to resume"
    saved = yaml.safe_load((outside / "run" / "config.yaml").read_text())
    assert saved["model"] == f"{outside / 'net.py'}:build"
    assert saved["algorithm"] == str(outside / "half.py") and saved["algo"] == {"weight": 0.25}
    assert saved["data"] == f"{outside / 'sets.py'}:stripes"
    assert (outside / "data" / "stripes" / "dataset.json").exists()

    elsewhere = outside / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings |= {
        "model": "../net.py:build",
        "algorithm": "../half.py",
        "data": "../sets.py:stripes",
        "max_time": 0,
    }
    assert fastssl.train("own", out="../run", resume=True, **settings)["steps"] == 4
    assert 0 <= fastssl.evaluate("../run", trust_code=True)["error"] <= 100
    model = fastssl.load("../run", trust_code=True)
    assert type(model.model).__name__ == "Net" and model.resolved.algorithm.name == "half"
    assert model.predict(np.zeros((16, 16, 3), np.uint8)).label in ("lying", "standing")
    with pytest.raises(ConfigError, match="has no features"):
        model.features(np.zeros((16, 16, 3), np.uint8))


def test_default_folders_hold_no_path(outside: Path) -> None:
    from fastssl.engine.launch import default_folder

    words = ["algorithm=half.py", "data=sets.py:stripes", "labels=10"]
    assert str(default_folder(load("own", words))) == "runs/stripes-half-10-s0"


@pytest.fixture
def package(outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that offers all three by entry points."""
    site = outside / "site"
    (site / "zoo").mkdir(parents=True)
    (site / "zoo" / "__init__.py").touch()
    for name in ("net", "half", "sets"):
        shutil.copy(outside / f"{name}.py", site / "zoo" / f"{name}.py")
    about = site / "zoo-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[fastssl.models]\ntiny-net = zoo.net:build\n"
        "[fastssl.algorithms]\nhalf = zoo.half\n"
        "[fastssl.datasets]\nstripes = zoo.sets:stripes\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.split(".")[0] == "zoo"]:
        del sys.modules[name]


def test_all_three_from_a_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSSL_DATA", str(package / "data"))
    names = {"model": "tiny-net", "algorithm": "half", "data": "stripes", "labels": 10}
    summary = fastssl.train("own", out=package / "run", **names, **TINY)
    assert summary["steps"] == 4
    assert type(fastssl.load(package / "run").model).__name__ == "Net"
    for kind, name in (("models", "tiny-net"), ("algorithms", "half"), ("datasets", "stripes")):
        assert name in [row["name"] for row in rows(kind)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=gone.py:build"], "there is no such file"),
        (["model=net.py"], "names only a file"),
        (["data=gone.py:x"], "there is no such file"),
        (["algorithm=gone.py"], "there is no such file"),
        (["algorithm=net.py"], "registers 0 algorithms"),
        (["algorithm=broken.py"], "cannot be imported: ZeroDivisionError"),
        (["algorithm=twice.py"], "is registered twice"),
        (["algorithm=half.py", "algo.wight=3"], "unknown key algo.wight"),
        (["model=nothing-like-it"], "no model is named"),
        (["algorithm=nothing-like-it"], "no algorithm is named"),
        (["data=nothing-like-it"], "no dataset is named"),
    ],
)
def test_mistakes_are_reported(outside: Path, words: list[str], message: str) -> None:
    (outside / "broken.py").write_text("1 / 0\n")
    (outside / "twice.py").write_text(ALGORITHM.replace('"half"', '"fixmatch"'))
    with pytest.raises(ConfigError, match=message):
        load("own", ["store=x", *words] if not words[0].startswith("data") else words)


def test_what_a_file_gives_is_looked_at(outside: Path) -> None:
    from fastssl import models

    with pytest.raises(ConfigError, match="returned a str"):
        models.build(f"{outside}/net.py:wrong", classes=3)
    for name in ("broken", "bare"):
        with pytest.raises(ConfigError, match="failed with 3 classes: TypeError") as caught:
            models.build(f"{outside}/net.py:{name}", classes=3)
        assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(ConfigError, match="has no nothing"):
        models.build(f"{outside}/net.py:nothing", classes=3)
    with pytest.raises(ConfigError, match="extra heads rotation"):
        models.build(f"{outside}/net.py:build", classes=3, heads={"rotation": 4})
    with pytest.raises(ConfigError, match="returned a int"):
        ensure_plugin_store(f"{outside}/sets.py:wrong")


def test_the_model_of_the_manual_trains(
    outside: Path, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.setenv("FASTSSL_DATA", str(data))
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (outside / "net.py").write_text(text.split("```python\n# net.py\n")[1].split("```")[0])
    settings = {**TINY, "batch": 10, "algorithm": "supervised"}
    assert fastssl.train("digits", model="net.py:build", out="run", **settings)["steps"] == 4
