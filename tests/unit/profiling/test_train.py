"""The record of a training, and a slow loader that must be seen as slow."""

import json
from collections import deque
from types import SimpleNamespace

import pytest
import torch

import pipelines
from fastssl.engine.build import Run
from fastssl.profiling import step_timing, train
from fastssl.profiling.subjects import TrainOptions
from pipelines.loader import loader as loader_module
from pipelines.loader.loader import Loader
from pipelines.readers import READERS


def test_a_record_of_a_training_has_every_reader():
    readers = [name for name in ("resident", "dali") if READERS[name].installed]
    overrides = ("model=wrn-10-1", "batch=4", "ratio=2", "threads=1")
    options = TrainOptions(
        config="digits",
        overrides=overrides,
        readers=tuple(readers),
        steps=1,
        repetitions=1,
    )
    record = train.run(options)
    json.dumps(record)
    assert record["what"] == "train" and record["settings"]["model"] == "wrn-10-1"
    assert list(record["data_wait"]) == readers
    assert set(record["ratio"]) == {*readers, "checkpoint"}
    rows = {line["name"]: line["rate"] for line in record["results"]}
    assert list(rows) == ["constant batch", *readers, "checkpoint"]
    assert min(rows["checkpoint"], rows["constant batch"]) > 0
    share = rows["checkpoint"] / rows["constant batch"]
    assert record["ratio"]["checkpoint"] == pytest.approx(share, rel=0.1)
    assert all(0 <= share <= 1 for share in record["data_wait"].values())


def test_the_time_of_a_checkpoint_is_spread_over_the_steps_between_two(monkeypatch):
    now = [0.0]

    def snapshot(*given):
        now[0] += 5.0

    monkeypatch.setattr(train, "snapshot", snapshot)
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    config = SimpleNamespace(checkpoint_every=200)
    learner = SimpleNamespace(
        resolved=SimpleNamespace(config=config), quality=SimpleNamespace(sums=None)
    )
    assert train.time_snapshot(Run(learner, None)) == 5 / 200


class FakeClock:
    """A clock on which the loader takes `batch` seconds per batch and a training step `step`.

    The loader starts a batch when the one before it is done; it starts the first one when a stream
    of batches is opened. The consumer waits by this clock until its batch is done, however the
    threads happen to run.
    """

    def __init__(self, batch, step):
        self.now = 0.0
        self.batch, self.step = batch, step
        self.ready = deque()  # when the batches that are not consumed yet are done

    def install(self, monkeypatch):
        real_produce, real_next = Loader._produce, Loader._next

        def produce(loader, *given):
            done = self.now
            for made in real_produce(loader, *given):
                done += self.batch
                self.ready.append(done)
                yield made

        def wait(loader, ring):
            made = real_next(loader, ring)
            if made is not None:
                self.now = max(self.now, self.ready.popleft())
            return made

        def train_step(*given):
            self.now += self.step

        monkeypatch.setattr(Loader, "_produce", produce)
        monkeypatch.setattr(Loader, "_next", wait)
        monkeypatch.setattr(step_timing, "train_step", train_step)
        for module in (step_timing, loader_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))


def test_a_slow_loader_is_seen_to_be_slow(data, monkeypatch):
    clock = FakeClock(batch=0.02, step=0.001)
    clock.install(monkeypatch)
    run = SimpleNamespace(device=SimpleNamespace(device=torch.device("cpu")))
    with pipelines.open_loader("digits", labels=40, batch=4, ratio=2) as loader:
        steps = train.FedSteps(run, loader.iterate, 2, loader)
        for _ in range(3):
            assert steps() == pytest.approx(0.02)
            clock.now += 0.1  # batches that could be made meanwhile must not count
    assert steps.shares == pytest.approx([0.95] * 3)  # 0.019 of 0.02 seconds
    assert steps.share == pytest.approx(0.95) and steps.done == 9


def test_the_summary_names_the_key_to_change():
    assert "The model is the bottleneck" in train.bottleneck({"ffcv": 0.001})
    assert "reader=ffcv" in train.bottleneck({"ffcv": 0.001, "dali": 0.3})
    assert "loader_threads" in train.bottleneck({"dali": 0.3})


def test_a_step_that_leaves_cores_idle_is_reported():
    assert train.idle_cores(1.6, 2) == ""
    assert "1.4 of 2 threads" in train.idle_cores(1.4, 2)
