"""What a run says of itself: how to go on, what was skipped, why it could not start."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastssl.config.resolve import load
from fastssl.distributed.collectives import SingleRank
from fastssl.engine import devices, launch, summary
from fastssl.engine.loop import Training
from fastssl.engine.nonfinite import NonFiniteCheck
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.signals import Stop
from fastssl.errors import ConfigError, DataError
from fastssl.tracking import progress_bar
from fastssl.tracking.progress_bar import Display
from fastssl.tracking.run_dir import RunFolder
from tests import runs
from tests.runs import TINY


def run_of(skipped, enabled=True):
    config = SimpleNamespace(seed=0)
    return SimpleNamespace(
        resolved=SimpleNamespace(config=config),
        split=SimpleNamespace(validation=[], labeled=[1]),
        store=SimpleNamespace(name="digits"),
        algorithm=SimpleNamespace(name="flexmatch"),
        scaler=SimpleNamespace(enabled=enabled, state={"skipped": torch.tensor(skipped)}),
    )


def test_the_line_to_go_on_is_told_as_it_must_be_typed(monkeypatch):
    told = summary.summarize(run_of(0, False), TrainingProgress(), {}, "interrupted")
    typed = ["/venv/bin/fastssl", "train", "digits", "--out", "my runs/a", "algo.threshold=0.9"]
    monkeypatch.setattr("sys.argv", typed)
    line = "fastssl train digits --out 'my runs/a' algo.threshold=0.9 --resume"
    assert summary.end_lines(told, Path("a"))[-1] == f"interrupted and saved; to go on: {line}"
    monkeypatch.setattr("sys.argv", [*typed, "--resume"])
    assert summary.end_lines(told, Path("a"))[-1].endswith(line)
    monkeypatch.setattr("sys.argv", ["my_script.py"])
    assert "my_script" not in summary.end_lines(told, Path("a"))[-1]


@pytest.mark.parametrize(
    ("errors", "median"),
    [
        ([30.0], "30.00 % over one evaluation"),
        ([50.0, 40.0, 30.0], "40.00 % over the last 3 evaluations"),
        ([90.0] * 9 + [10.0] * 20, "10.00 % over the last 20 evaluations"),
    ],
)
def test_the_median_is_told_over_the_evaluations_there_were(errors, median):
    trip = TrainingProgress()
    for trip.step, error in enumerate(errors, 1):
        trip.note({"error": error})
    told = summary.summarize(run_of(0, False), trip, {}, "finished")
    assert f"median error  {median}" in summary.end_lines(told, Path("a"))
    assert told["evaluations"] == len(errors)


def test_a_run_that_was_never_evaluated_says_so_and_names_no_step():
    told = summary.summarize(run_of(0, False), TrainingProgress(step=2), {}, "interrupted")
    assert summary.end_lines(told, Path("a"))[:2] == [
        "error         not evaluated yet",
        "time          0:00 for 2 steps",
    ]


def test_steps_that_fp16_skipped_are_told(monkeypatch):
    lines = []
    monkeypatch.setattr(progress_bar.logger, "info", lambda text, *a, **k: lines.append(text % a))
    display = Display(10)
    line = {"loss": 1.0, "speed/images_per_s": 9.0, "speed/data_wait": 0.0}
    display.logged(5, {**line, "fp16_skipped": 0})
    display.logged(6, {**line, "fp16_skipped": 3})
    assert "fp16" not in lines[0] and "fp16 skipped 3" in lines[1]
    for skipped in (0, 3):
        told = summary.summarize(run_of(skipped), TrainingProgress(), {}, "finished")
        assert told["fp16_skipped"] == skipped
        shown = "\n".join(summary.end_lines(told, Path("a")))
        assert ("fp16 skipped  3 steps" in shown) == (skipped > 0)
    assert "fp16_skipped" not in summary.summarize(
        run_of(0, False), TrainingProgress(), {}, "finished"
    )


def test_a_failure_is_written_into_a_run_that_is_not_finished(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    launch.write_failure(folder, 0, DataError("bad", "mend"), 2)
    assert "rank 0: exit 3" in capsys.readouterr().err and not folder.summary.exists()
    folder.config.write_text("data: digits\n")
    launch.write_failure(folder, 0, DataError("bad", "mend"), 1)
    assert capsys.readouterr().err == ""
    assert json.loads(folder.summary.read_text())["what"] == "bad"
    folder.summary.write_text('{"status": "finished"}')
    launch.write_failure(folder, 0, ConfigError("other words", "mend"), 1)
    assert folder.finished()


def test_a_dry_run_compiles_as_the_run_would(data, monkeypatch):
    resolved, chosen = load("digits", [*TINY, "steps=2"]), []
    monkeypatch.setattr(launch.compilation, "choose", lambda run, step, tell: chosen.append(step))
    assert launch.rehearse(resolved, devices.choose(resolved.config), SingleRank()) == 0
    assert chosen == [0]


def test_a_dry_run_prints_one_json_object_on_request(data, capsys):
    resolved = load("digits", [*TINY, "steps=2"])
    device = devices.choose(resolved.config)
    assert launch.rehearse(resolved, device, SingleRank(), as_json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"] == 2 and 0 < printed["seconds_per_step"] < 60


STARTS = ["data", "learn", "model", "device", "reader", "run"]


def test_what_will_run_is_said_before_the_first_step_is_measured(data, tmp_path):
    out, told = tmp_path / "run", tmp_path / "told"
    assert runs.train(out, "compile=auto", "steps=1", before=partial(told_to, told)) == 0
    lines = [line.partition(" ")[0] for line in told.read_text().splitlines()]
    assert lines[:9] == [*STARTS, "compile:", "MEASURED", "compile"]
    kept = [line.split()[2] for line in (out / "log.txt").read_text().splitlines()[:8]]
    assert kept == [*STARTS, "compile:", "compile"], "the log begins where the run does"


def told_to(path):
    """Send stderr to a file, and say there when a step is measured."""
    real = launch.compilation.seconds

    def seconds(run, batch, step):
        print("MEASURED", file=sys.stderr, flush=True)
        return real(run, batch, step)

    launch.compilation.seconds = seconds
    sys.stderr = path.open("w")


def test_the_question_whether_to_stop_rides_on_the_steps_reduction():
    calls = []

    def mean(tensor):
        calls.append(tensor.tolist())
        return tensor if tensor.ndim == 0 else tensor + torch.tensor([0.0, 7.5])  # rank 1 got 15

    ranks = SimpleNamespace(world=2, mean=mean, max=lambda told: calls.append(told) or 15)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    nonfinite = NonFiniteCheck(model, {}, 0, torch.device("cpu"))
    config = SimpleNamespace(max_time=0, steps=3)
    device = SimpleNamespace(device=torch.device("cpu"))
    run = SimpleNamespace(
        resolved=SimpleNamespace(config=config), ranks=ranks, device=device, nonfinite=nonfinite
    )
    training = Training(run, TrainingProgress(), None, None, None)
    stop = Stop()
    assert training.stop_requested(stop) == 0 and not calls, "nobody was told: nothing is sent"
    nonfinite.ask = lambda: training.told(stop)
    assert nonfinite.judge(torch.tensor(1.0), 0, ranks) == 1
    assert calls == [[1.0, 0.0]], "one reduction, with the question in it"
    assert training.stop_requested(stop) == 15 and calls[1:] == [0]
    assert nonfinite.judge(torch.tensor(float("nan")), 1, ranks) == 0 and nonfinite.bad_step == 1
