"""torchrun itself: a killed rank that comes back, and the ImageNet recipe from JPEG to error."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests import ranked, runs
from tests.image_files import noise
from tests.installed import needs

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 500
WORDS = ("steps=6", "checkpoint_every=2", "log_every=1", "eval_every=3", "eval_every_late=3")

# Rank 1 of the first attempt kills itself before its fifth step.
KILLED = """
import os, signal, sys
from tests import runs
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    runs.before_step(4, lambda: os.kill(os.getpid(), signal.SIGKILL))
from fastssl import cli
cli.main()
"""


def environment() -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **threads, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}


def finish(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    """Run a command in a session of its own, all of which ends with it or with the patience."""
    process = subprocess.Popen(
        command,
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, message = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, message)


def test_a_killed_rank_comes_back_and_the_run_is_the_undisturbed_one(data, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert ranked.train(2, whole, *WORDS) == [0, 0]
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node=2", "--max-restarts=1", str(program)]
    words = ["train", "digits", *runs.TINY, *WORDS, "--out", str(out), "--resume"]
    done = finish([*launch, *words], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "lost contact with another rank" in done.stderr
    runs.assert_same_run(whole, out)
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(out) in (p.info["cmdline"] or [])
    ]


def write_ilsvrc(root: Path, classes: int = 2, each: int = 8) -> Path:
    """Write a miniature of ILSVRC's folders: photographs in JPEG, of several sizes."""
    random = np.random.default_rng(0)
    for part, count in (("train", each), ("val", 3)):
        for number in range(classes):
            name = f"n{number + 1440764:08d}"
            folder = root / part / name
            folder.mkdir(parents=True)
            for place in range(count):
                size = (80 + 10 * (place % 3), 70)
                noise(size, random).save(folder / f"{name}_{place}.JPEG", "JPEG")
    return root


def recipe(tmp_path: Path, data: Path, *readers: str) -> None:
    raw = write_ilsvrc(tmp_path / "ilsvrc")
    words = ["labels=all", "batch=2", "ratio=1", "steps=2", "eval_batch=6", "log_every=1"]
    words += ["tensorboard=false", "threads=1", "loader_threads=1", "device=cpu"]
    for reader in readers:
        out = tmp_path / f"run-{reader}"
        command = ["bash", str(ROOT / "tools/imagenet_100k.sh"), str(raw), "--size", "64"]
        command += ["--store", str(tmp_path / "store"), "--out", str(out), "--nproc", "2"]
        command += ["--format", ",".join(readers)]
        done = finish([*command, *words, f"reader={reader}"], tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "error" in done.stdout  # the table of the evaluation
        summary = json.loads((out / "summary.json").read_text())
        assert summary["status"] == "finished" and summary["steps"] == 2
        config = (out / "config.yaml").read_text()
        assert "model: resnet50" in config and f"reader: {reader}" in config
        assert "2 ranks" in (out / "log.txt").read_text()


@needs("dali")
def test_the_imagenet_recipe_with_dali(data, tmp_path):
    recipe(tmp_path, data, "dali")


@pytest.mark.slow
@needs("ffcv", "dali")
def test_the_imagenet_recipe_with_both_readers_is_one_run(data, tmp_path):
    recipe(tmp_path, data, "ffcv", "dali")
    losses = [
        [line["loss"] for line in runs.metrics(tmp_path / f"run-{r}")] for r in ("ffcv", "dali")
    ]
    assert losses[0] == losses[1]  # both readers give the same bytes


def call_recipe(*words: str) -> subprocess.CompletedProcess:
    command = ["bash", str(ROOT / "tools/imagenet_100k.sh"), *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True)


def test_the_recipe_says_how_it_is_used():
    done = call_recipe("--help")
    assert done.returncode == 0 and "--nproc N" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the folder ILSVRC is missing"),
        (["raw", "--store"], "--store wants a value"),
        (["raw", "--sizes", "64"], "no option --sizes"),
        (["raw", "--nproc=2"], "no option --nproc=2"),
        (["raw", "more"], "raw and more"),
        (["raw", "--nproc", "two"], "--nproc two"),
    ],
)
def test_a_mistake_in_the_recipe_is_reported_in_two_lines(words, message):
    done = call_recipe(*words)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout and len(lines) == 2
    assert message in lines[0] and "  fix: type tools/imagenet_100k.sh ILSVRC" in lines[1]
