"""The real command in a shell: train, be killed, go on, evaluate; nothing lost on the way."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import runs
from tests.process_output import PATIENCE, Listener
from tests.runs import TINY, assert_same_run, last

ROOT = Path(__file__).resolve().parents[2]

# Python imports a module of this name at its start; it makes the extras impossible to find.
HIDE = """
from importlib.machinery import PathFinder

real = PathFinder.find_spec
extras = {"ffcv", "nvidia", "onnx", "onnxruntime", "onnxscript", "safetensors", "timm"}


def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in extras else real(name, path, target)


PathFinder.find_spec = find_spec
"""


# The command, held before its third step until a file exists, so that a signal arrives there,
# however fast the machine is. Arguments: FILE, then those of the command.
HELD = """
import sys, time
from pathlib import Path
from fastssl import cli
from tests import runs

def hold():
    print("held", file=sys.stderr, flush=True)
    while not file.exists():
        time.sleep(0.01)

file = Path(sys.argv.pop(1))
runs.before_step(2, hold)
cli.main()
"""


def fastssl(*words, code=0, **named):
    """Run the command as a shell does."""
    command = [sys.executable, "-m", "fastssl", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **named)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def forked(tmp_path):
    """Run the command in a process forked from one that has imported torch."""
    folder = tmp_path / "working folder"
    folder.mkdir()

    def run(*words, code=0):
        done = runs.finish(folder, *words)
        assert done.code == code, done.stderr
        return done

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("e2e") / "run"
    return out, fastssl("train", "digits", *TINY, "tensorboard=true", "--out", out)


def test_a_run_leaves_all_it_promises_and_says_what_to_type_next(finished):
    out, done = finished
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.yaml", "environment.json", "metrics.jsonl", "tensorboard"}
    assert names >= {"checkpoints", "summary.json", "log.txt"}
    summary = json.loads((out / "summary.json").read_text())
    for key in ("best_error", "median_error", "steps", "seconds", "images_per_s", "data_wait"):
        assert isinstance(summary[key], int | float), key
    assert summary["best_chosen_on"] == "test set"
    noted = json.loads((out / "environment.json").read_text())["class_names"]
    assert noted == [str(digit) for digit in range(10)]
    starts = [line.split()[0] for line in done.stderr.splitlines()[:6]]
    assert starts == ["data", "learn", "model", "device", "reader", "run"]
    assert f"next: fastssl eval {out}" in done.stderr
    assert list((out / "tensorboard").glob("events.*"))


def test_eval_needs_the_folder_alone_and_repeats_the_runs_own_metrics(finished, forked):
    out, _ = finished
    summary = json.loads((out / "summary.json").read_text())
    best = json.loads(forked("eval", out, "--json").stdout)
    assert best["error"] == summary["best_error"] and best["step"] == summary["best_step"]
    latest = json.loads(forked("eval", out, "--checkpoint", "last", "--json").stdout)
    assert latest["error"] == summary["last_error"]
    assert latest["class_accuracy"] == summary["class_accuracy"]


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(finished, forked, tmp_path):
    out, _ = finished
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    message = forked("train", "digits", *TINY, "--out", out, code=2).stderr
    assert "--resume" in message and "--out" in message
    again = forked("train", "digits", *TINY, "tensorboard=true", "--out", out, "--resume").stderr
    assert "is finished" in again
    message = forked("train", "digits", *TINY, "lr=1", "--out", out, "--resume", code=2).stderr
    assert "lr=0.03" in message
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = tmp_path / "papers"
    other.mkdir()
    (other / "thesis.txt").write_text("dear")
    message = forked("train", "digits", *TINY, "--out", other, "--resume", code=2).stderr
    assert "no run" in message and (other / "thesis.txt").read_text() == "dear"


def test_no_valid_checkpoint_is_reported_and_nothing_is_overwritten(finished, forked, tmp_path):
    import shutil

    out, _ = finished
    broken = tmp_path / "broken"
    shutil.copytree(out, broken)
    (broken / "summary.json").unlink()  # a finished run would need none
    for path in (broken / "checkpoints").glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:100])
    before = (broken / "metrics.jsonl").read_bytes()
    done = forked("train", "digits", *TINY, "--out", broken, "--resume", code=3)
    assert "no checkpoint" in done.stderr
    assert (broken / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_run_goes_on_as_if_nothing_had_been(number, code, forked, tmp_path):
    words = [*TINY, "steps=12", "log_every=1", "eval_every=12", "checkpoint_every=12"]
    words.append("eval_every_late=12")
    out, release = tmp_path / "run", tmp_path / "release"
    command = [sys.executable, "-c", HELD, str(release), "train", "digits", *words]
    child = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, cwd=ROOT)
    stderr = Listener(child, child.stderr)
    before = stderr.line("held")
    child.send_signal(number)
    release.touch()
    rest = stderr.end().removeprefix(before)
    assert child.returncode == code, before + rest
    assert "interrupted and saved" in rest and "--resume" in rest
    assert 2 <= last(out)["trip"]["step"] < 12
    if number == signal.SIGTERM:
        forked("train", "digits", *words, "--out", out, "--resume")
        forked("train", "digits", *words, "--out", tmp_path / "whole")
        assert last(out)["trip"]["step"] == 12
        lines = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
        assert [x["step"] for x in lines if x["kind"] == "train"] == list(range(1, 13))
        assert_same_run(tmp_path / "whole", out)


def hold_before_the_third_step(held, release):
    def hold():
        held.set()
        release.wait(2 * PATIENCE)

    runs.before_step(2, hold)


def test_two_runs_in_one_folder_at_once_are_refused(forked, tmp_path, data):
    out = tmp_path / "run"
    words = [*TINY, "steps=100000", "log_every=1"]
    held, release = runs.event(), runs.event()
    child = runs.start(out, *words, before=partial(hold_before_the_third_step, held, release))
    try:
        assert held.wait(PATIENCE), "the run never took its third step"
        message = forked("train", "digits", *words, "--out", out, "--resume", code=2).stderr
        assert "another run is writing" in message
    finally:
        child.kill()
        child.join()
    done = forked("train", "digits", *words, "max_time=0.0001", "--out", out, "--resume")
    assert "out of time and saved" in done.stderr


def test_it_runs_with_no_extra_installed(tmp_path, data):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE)
    place = {**os.environ, "PYTHONPATH": f"{hidden}:{ROOT}", "FASTSSL_DATA": str(tmp_path / "data")}
    done = fastssl("train", "digits", *TINY, "--out", tmp_path / "run", env=place, cwd=tmp_path)
    assert "resident" in done.stderr
    manifest = json.loads((tmp_path / "data" / "digits" / "dataset.json").read_text())
    assert "ffcv" not in manifest["formats"]


def test_a_dry_run_writes_nothing(forked, data):
    done = forked("train", "digits", *TINY, "--dry-run")
    assert "ms a step" in done.stderr
    assert list(forked.folder.iterdir()) == []
