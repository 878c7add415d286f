"""What `threads=auto` chooses, that measuring changes nothing, and when slow steps are reported."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import fastssl
from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks
from fastssl.distributed.process_group import Group
from fastssl.engine import devices, dry_run, loop, threads
from fastssl.engine.build import Run
from fastssl.engine.progress import TrainingProgress
from fastssl.errors import ConfigError
from pipelines.loader import loader
from tests import runs
from tests.unit.engine.test_resume import TINY
from tests.unit.test_plugins import MODEL

# Its first weights differ with the threads of the process that builds it, as those of a start that
# computes do, and it draws from torch's generator in every step.
BY_THREADS = MODEL.replace("from torch", "import torch\nfrom torch").replace(
    "return Net(classes)\n",
    "net = Net(classes)\n"
    "    net.out.bias.data += torch.get_num_threads()\n"
    "    net.bn = nn.Sequential(net.bn, nn.Dropout(0.5))\n"
    "    return net\n",
    1,
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(devices, "available_cpus", lambda: 2)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """A clock that moves when a step is run, by the cost of the threads that are set.

    `noise` are the factors of the first, second, … step with a number of threads.
    """

    def __init__(self, monkeypatch, costs, noise=(1, 1, 1, 1)):
        self.costs, self.noise, self.now, self.steps = costs, noise, 0.0, []
        monkeypatch.setattr(threads.torch, "set_num_threads", self.set_threads)

    def set_threads(self, number):
        self.number = number

    def clock(self):
        return self.now

    def step(self):
        self.now += self.costs[self.number] * self.noise[self.steps.count(self.number)]
        self.steps.append(self.number)


def test_all_numbers_are_measured_the_most_first_and_the_first_call_does_not_count(monkeypatch):
    costs = {6: 0.125, 3: 0.0625, 1: 0.1875}
    machine = Machine(monkeypatch, costs, noise=(8, 0.5, 1, 2))
    assert threads.measure(machine.step, 6, machine.clock) == costs
    assert machine.steps == [6, 6, 6, 6, 3, 3, 3, 3, 1, 1, 1, 1]
    assert machine.number == 6, "the process has the threads that it had"


@pytest.mark.parametrize(
    ("costs", "measured"),
    [
        ({2: 0.001, 1: 0.002}, 2),
        ({2: 2.0, 1: 1.5}, 2),
        ({2: 2.0, 1: 4.0}, 2),
        ({2: 6.0, 1: 3.0}, 1),  # nobody knows that one thread would be faster
        ({64: 0.3, 32: 0.5, 16: 0.9, 8: 1.6, 4: 3.0, 2: 6.0, 1: 12.0}, 5),
        ({64: 1.1, 32: 1.1, 16: 1.1, 8: 1.1, 4: 1.1, 2: 1.1, 1: 1.1}, 7),
    ],
)
def test_measuring_ends_within_ten_seconds(monkeypatch, costs, measured):
    machine = Machine(monkeypatch, costs)
    found = threads.measure(machine.step, max(costs), machine.clock)
    assert [*found] == [*costs][:measured]
    assert machine.now <= 10 and all(machine.steps.count(number) <= 4 for number in costs)


@pytest.mark.parametrize(
    ("times", "number"),
    [
        ({2: 0.715, 1: 0.375}, 1),
        ({2: 0.96, 1: 1.0}, 1),  # not clearly faster
        ({2: 0.9, 1: 1.0}, 2),
        ({8: 1.0, 4: 0.5, 2: 0.51, 1: 0.9}, 2),
        ({8: 0.9, 4: 0.96, 2: 0.98, 1: 1.0}, 8),
        ({8: 3.0}, 8),
    ],
)
def test_more_threads_are_chosen_only_if_they_are_clearly_faster(times, number):
    assert threads.fastest(times) == number


def train(out, **settings):
    return fastssl.train("digits", out=out, **{**TINY, "compile": "auto", **settings})


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_that_chose_its_threads_is_the_run_with_that_number(
    data, tmp_path, monkeypatch, number
):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(BY_THREADS)
    monkeypatch.setattr(threads, "fastest", lambda times: number)
    auto = {"threads": "auto", "model": "net.py:build", "steps": 6}
    train("auto", **auto, max_time=1e-9)  # ends after a step
    saved = yaml.safe_load(Path("auto/config.yaml").read_text())
    assert (saved["threads"], saved["compile"]) == (number, "off")
    log = Path("auto/log.txt").read_text()
    measured = log.index(f"threads {number}: measured a step of ")
    assert " ms with 2, " in log and " ms with 1\n" in log
    assert log.index("device") < measured < log.index("compile: measuring"), "in this order"
    monkeypatch.setattr(threads, "measure", None)  # not again
    assert train("auto", **auto, resume=True)["steps"] == 6
    assert yaml.safe_load(Path("auto/config.yaml").read_text())["threads"] == number
    train("fixed", **{**auto, "threads": number})
    runs.assert_same_run(Path("auto"), Path("fixed"))


@pytest.mark.parametrize("world", [1, 2])
def test_what_is_not_measured_has_all_cores_and_the_config_says_so(monkeypatch, world):
    monkeypatch.setattr(devices, "available_cpus", lambda: 8)
    group = Group(Ranks(), local_world=world)
    for typed, number in (("auto", 8 // world), ("0", 0), ("3", 3)):
        resolved, device = devices.choose_for_run(load("digits", [f"threads={typed}"]), group)
        assert resolved.config.threads == number
        assert device.threads == (number or 8 // world)


def learner_of(kind="cpu", world=1, threads=2, first=0):
    config = SimpleNamespace(supervised_steps=first)
    return SimpleNamespace(
        resolved=SimpleNamespace(config=config),
        ranks=SimpleNamespace(world=world),
        device=devices.Device(torch.device(kind), "fp32", threads, 1),
    )


@pytest.mark.parametrize(
    ("wanted", "learner"),
    [
        (0, learner_of()),
        (2, learner_of()),
        ("auto", learner_of("cuda")),
        ("auto", learner_of(world=2)),
        ("auto", learner_of(threads=1)),
    ],
)
def test_only_auto_in_one_process_on_a_cpu_of_several_cores_measures(wanted, learner):
    run = Run(learner, None)
    assert threads.choose(run, wanted) is run


def test_a_dry_run_takes_its_steps_with_the_number_that_a_run_would_choose(
    data, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr(threads, "measure", lambda run, most: {most: 0.715, 1: 0.375})
    found = dry_run.measure(load("digits", [*runs.TINY, "threads=auto"]), Group(Ranks()))
    assert found.learner.device.threads == torch.get_num_threads() == 1
    assert "threads 1: measured a step of 715 ms with 2, 375 ms with 1" in caplog.messages


def test_a_number_or_auto_is_accepted_and_nothing_else():
    assert load("digits", ["threads=auto"]).config.threads == "auto"
    assert load("digits", []).config.threads == 0
    for text in ("-1", "many", "1.5", "true"):
        with pytest.raises(ConfigError, match="threads is"):
            load("digits", [f"threads={text}"])


def reports(caplog, seconds, *, steps=1, waits=(), **kind):
    """Return the warnings of a run whose log steps are `seconds` of training apart.

    At the steps of `waits` it waited for a batch that long besides.
    """
    pace, progress, learner = threads.Pace(), TrainingProgress(), learner_of(**kind)
    for one in seconds:
        progress.step += steps
        waited = dict(waits).get(progress.step, 0)
        progress.train_seconds += one + waited
        progress.waited += waited
        pace.check(learner, progress)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_steps_that_become_slow_are_reported_once_with_what_to_type(caplog):
    # The first interval warms up. Three set the time of a step, by their median.
    (line,) = reports(caplog, [99, 30, 40, 35, 60, 70, 75, 90, 200], steps=100)
    assert "a step takes 750 ms, and took 350 ms at first" in line
    assert "keeps 2" in line and "order of sums" in line and line.endswith("with threads=1")


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        ([10, 10, 10, 10, 20, 15], {}),
        ([10, 10, 10, 10, 50], {"kind": "cuda"}),
        ([10, 10, 10, 10, 50], {"threads": 1}),
        ([10, 10, 10, 10, 10, 10], {"waits": {6: 50}}),
        ([0.1, 0.1, 0.1, 0.1, 3.0] + 49 * [0.1], {}),  # a moment of the machine
        ([5, 5, 5, 5, 50, 50, 50, 50], {"first": 5}),
    ],
)
def test_nothing_is_reported_of_steps_that_are_not_slow_for_long(caplog, seconds, kind):
    assert reports(caplog, seconds, **kind) == []


def test_evaluations_and_checkpoints_do_not_make_steps_slow(data, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=time.monotonic())
    costs = iter([9, 6, 6, 6, 6, 6, 13, 6, 13, 6])
    real, evaluate = loop.train_step, loop.Training.evaluate

    def train_step(*given):
        clock.now += next(costs)
        return real(*given)

    def slowly(self):
        clock.now += 1000
        return evaluate(self)

    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(loader, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(loop, "train_step", train_step)
    monkeypatch.setattr(loop.Training, "evaluate", slowly)
    often = {"log_every": 1, "eval_every": 2, "eval_every_late": 2, "model": "net.py:build"}
    train("run", **often, steps=10, threads=2, compile="off")
    lines = Path("run/log.txt").read_text().splitlines()
    slow = [line for line in lines if "a step takes" in line]
    assert len(slow) == 1 and "warning: a step takes 13000 ms, and took 6000 ms at first" in slow[0]
    assert "step 7/10" in lines[lines.index(slow[0]) - 1]
