"""What a run says of itself: how to go on, what was skipped, why it could not start."""

import json
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks
from fastssl.distributed.process_group import Group
from fastssl.engine import dry_run, failures, launch, summary
from fastssl.engine.loop import Training
from fastssl.engine.progress import TrainingProgress
from fastssl.engine.signals import Stop
from fastssl.errors import DataError
from fastssl.tracking import progress_bar
from fastssl.tracking.progress_bar import Display
from fastssl.tracking.run_dir import RunFolder
from tests import runs
from tests.runs import TINY


def training_of(progress=None, skipped=0, fp16=False):
    scaler = SimpleNamespace(enabled=fp16, state={"skipped": torch.tensor(skipped)})
    return SimpleNamespace(
        learner=SimpleNamespace(algorithm=SimpleNamespace(name="flexmatch"), scaler=scaler),
        data=SimpleNamespace(
            evaluations={"test": None},
            split=SimpleNamespace(validation=[], labeled=[1]),
            store=SimpleNamespace(name="digits"),
        ),
        progress=progress or TrainingProgress(),
        config=SimpleNamespace(seed=0),
        writer=None,
    )


def test_the_line_to_go_on_is_reported_as_it_must_be_typed(monkeypatch):
    message = summary.summarize(training_of(), {}, "interrupted")
    typed = ["/venv/bin/fastssl", "train", "digits", "--out", "my runs/a", "algo.threshold=0.9"]
    monkeypatch.setattr("sys.argv", typed)
    line = "fastssl train digits --out 'my runs/a' algo.threshold=0.9 --resume"
    assert summary.end_lines(message, Path("a"))[-1] == f"interrupted and saved; to go on: {line}"
    monkeypatch.setattr("sys.argv", [*typed, "--resume"])
    assert summary.end_lines(message, Path("a"))[-1].endswith(line)
    monkeypatch.setattr("sys.argv", ["my_script.py"])
    assert "my_script" not in summary.end_lines(message, Path("a"))[-1]


@pytest.mark.parametrize(
    ("errors", "median"),
    [
        ([30.0], "30.00 % over one evaluation"),
        ([50.0, 40.0, 30.0], "40.00 % over the last 3 evaluations"),
        ([90.0] * 9 + [10.0] * 20, "10.00 % over the last 20 evaluations"),
    ],
)
def test_the_median_is_told_over_the_evaluations_there_were(errors, median):
    progress = TrainingProgress()
    for progress.step, error in enumerate(errors, 1):
        progress.add_evaluation({"error": error})
    message = summary.summarize(training_of(progress), {}, "finished")
    assert f"median error  {median}" in summary.end_lines(message, Path("a"))
    assert message["evaluations"] == len(errors)


def test_a_run_that_was_never_evaluated_says_so_and_names_no_step():
    message = summary.summarize(training_of(TrainingProgress(step=2)), {}, "interrupted")
    assert summary.end_lines(message, Path("a"))[:2] == [
        "error         not evaluated yet",
        "time          0:00 for 2 steps",
    ]


def test_steps_that_fp16_skipped_are_reported(monkeypatch):
    lines = []
    monkeypatch.setattr(progress_bar.logger, "info", lambda text, *a, **k: lines.append(text % a))
    display = Display(10)
    line = {"loss": 1.0, "speed/images_per_s": 9.0, "speed/data_wait": 0.0}
    display.log_metrics(5, {**line, "fp16_skipped": 0})
    display.log_metrics(6, {**line, "fp16_skipped": 3})
    assert "fp16" not in lines[0] and "fp16 skipped 3" in lines[1]
    for skipped in (0, 3):
        message = summary.summarize(training_of(skipped=skipped, fp16=True), {}, "finished")
        assert message["fp16_skipped"] == skipped
        shown = "\n".join(summary.end_lines(message, Path("a")))
        assert ("fp16 skipped  3 steps" in shown) == (skipped > 0)
    assert "fp16_skipped" not in summary.summarize(training_of(), {}, "finished")


def test_a_failure_is_written_only_by_the_process_that_trains(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    folder.config.write_text("data: digits\n")
    failures.write_failure(folder, 0, DataError("bad", "repair it"), 2)
    assert "rank 0: exit 3" in capsys.readouterr().err and not folder.summary.exists()
    folder.training = True
    failures.write_failure(folder, 0, DataError("bad", "repair it"), 1)
    assert capsys.readouterr().err == ""
    assert json.loads(folder.summary.read_text())["what"] == "bad"


def test_the_end_of_max_time_is_not_the_number_of_a_signal():
    assert max(signal.valid_signals()) < launch.TIME_UP


@pytest.mark.parametrize(
    ("compiling", "steps", "said"), [("off", 10**7, 0), ("auto", 2, 0), ("auto", 10**7, 1)]
)
def test_a_dry_run_never_compiles_and_says_when_compiling_may_change_it(
    data, monkeypatch, caplog, compiling, steps, said
):
    caplog.set_level("INFO")
    monkeypatch.setattr(dry_run.compilation, "choose", None)
    monkeypatch.setattr(dry_run.psutil, "getloadavg", lambda: (0.5, 0.5, 0.5))
    resolved = load("digits", [*TINY, f"steps={steps}", f"compile={compiling}"])
    assert dry_run.rehearse(resolved, Group(Ranks())) == 0
    assert sum("compil" in line for line in caplog.messages[6:]) == said
    assert "busy" not in caplog.text


def test_a_dry_run_of_slow_steps_ends_after_one_and_mentions_a_busy_machine(
    data, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr(dry_run, "PATIENCE", 0.0)
    monkeypatch.setattr(dry_run.psutil, "getloadavg", lambda: (99.0, 0.0, 0.0))
    taken = []
    real = dry_run.train_step
    monkeypatch.setattr(dry_run, "train_step", lambda *given: taken.append(1) or real(*given))
    assert dry_run.rehearse(load("digits", TINY), Group(Ranks())) == 0
    assert len(taken) == 1
    assert "load 99" in caplog.text and "busy" in caplog.text


@pytest.mark.parametrize(("settled", "steps"), [(0.0, 10), (600.0, 25)])
def test_a_dry_run_of_fast_steps_goes_on_for_a_while(data, monkeypatch, settled, steps):
    monkeypatch.setattr(dry_run, "PATIENCE", 600.0)
    monkeypatch.setattr(dry_run, "SETTLED", settled)
    taken = []
    real = dry_run.train_step
    monkeypatch.setattr(dry_run, "train_step", lambda *given: taken.append(1) or real(*given))
    assert dry_run.rehearse(load("digits", [*TINY, "steps=25"]), Group(Ranks())) == 0
    assert len(taken) == steps


@pytest.mark.parametrize(("algorithm", "said"), [("flexmatch", 1), ("fixmatch", 0)])
def test_that_all_is_trusted_at_first_is_explained_once(data, tmp_path, algorithm, said):
    out = tmp_path / "run"
    assert runs.train(out, "log_every=1", f"algorithm={algorithm}") == 0
    text = (out / "log.txt").read_text()
    assert text.count("trusted 100 % is expected") == said
    assert "trusted 100 %  " in text or not said


def test_a_dry_run_prints_one_json_object_on_request(data, capsys):
    resolved = load("digits", [*TINY, "steps=2"])
    assert dry_run.rehearse(resolved, Group(Ranks()), as_json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"] == 2 and 0 < printed["seconds_per_step"] < 60


STARTS = ["data", "learn", "model", "device", "reader", "run"]


def test_what_will_run_is_said_before_the_first_step_is_measured(data, tmp_path):
    out, message = tmp_path / "run", tmp_path / "message"
    assert runs.train(out, "compile=auto", "steps=1", before=partial(told_to, message)) == 0
    lines = [line.partition(" ")[0] for line in message.read_text().splitlines()]
    assert lines[:9] == [*STARTS, "compile:", "MEASURED", "compile"]
    kept = [line.split()[2] for line in (out / "log.txt").read_text().splitlines()[:8]]
    assert kept == [*STARTS, "compile:", "compile"], "the log begins where the run does"


def told_to(path):
    """Send stderr to a file, and say there when a step is measured."""
    real = launch.compilation.seconds

    def seconds(learner, batch, step):
        print("MEASURED", file=sys.stderr, flush=True)
        return real(learner, batch, step)

    launch.compilation.seconds = seconds
    sys.stderr = path.open("w")


@pytest.mark.parametrize(("kind", "steps"), [("cpu", [1, 2, 3]), ("cuda", [10, 20, 30])])
def test_ranks_exchange_stop_requests_every_step_on_cpus_and_every_ten_on_cuda(kind, steps):
    learner = SimpleNamespace(
        resolved=SimpleNamespace(config=SimpleNamespace(max_time=0, steps=30)),
        ranks=SimpleNamespace(world=2, max=lambda own: 15),  # the other rank received SIGTERM
        device=SimpleNamespace(device=torch.device(kind)),
    )
    progress = TrainingProgress()
    training = Training(learner, None, progress, None, None, None)
    stops = []
    for progress.step in range(1, 31):
        if training.stop_requested(Stop()):
            stops.append(progress.step)
    assert stops[:3] == steps


def test_only_a_signal_ends_the_wait_for_the_first_batch():
    config = SimpleNamespace(max_time=1e-9, steps=30)
    learner = SimpleNamespace(resolved=SimpleNamespace(config=config))
    training, stop = Training(learner, None, TrainingProgress(seconds=1), None, None, None), Stop()
    assert training.stop_while_waiting(stop) == 0
    training.out = SimpleNamespace()
    assert training.stop_while_waiting(stop) == launch.TIME_UP
    training.out, stop.signal = None, signal.SIGTERM
    assert training.stop_while_waiting(stop) == signal.SIGTERM


def test_a_note_names_the_classes_with_fewer_labels_than_requested():
    store = SimpleNamespace(
        labels=lambda split: np.array([0, 1, 1, 2]), classes=3, class_names=["a\x1b", "b", "c"]
    )
    data = SimpleNamespace(store=store, split=SimpleNamespace(labeled=np.arange(4)))

    def notes(labels):
        config = SimpleNamespace(labels=labels)
        return summary.few_labels(SimpleNamespace(resolved=SimpleNamespace(config=config)), data)

    assert notes("2/class") == [r"note    fewer labels than 2/class: a\x1b (1), c (1)"]
    assert notes("1/class") == notes(4) == []


def test_an_interrupted_label_is_continued_by_the_same_command():
    words = ["label", "runs/a", "data/pets", "--cross-fit", "3"]
    assert summary.resume_command(["fastssl", *words]) == f"fastssl {' '.join(words)}"
    assert summary.resume_command(["fastssl", "train", "digits"]) == "fastssl train digits --resume"
