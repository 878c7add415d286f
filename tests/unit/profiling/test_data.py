import json
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pipelines
from fastssl.errors import DataError
from fastssl.profiling import photos, train
from pipelines.loader import loader as loader_module
from pipelines.loader.loader import Loader
from tests.pictures import noise


def test_the_record_of_photographs(tmp_path):
    random = np.random.default_rng(0)
    for place in range(6):
        noise((300, 280), random).save(tmp_path / f"photo{place}.jpg")
    record = photos.run(tmp_path, threads=1, batch=4, batches=2, repetitions=1)
    json.dumps(record)
    assert record["what"] == "photos"
    assert set(record["ratio"]) == {"pil", "ffcv", "dali"}
    assert all(value > 0 for value in record["ratio"].values())
    units = {line["name"]: line["unit"] for line in record["results"]}
    assert units["fastssl ffcv"] == units["pil"] == "views/s"
    assert units["reader dali"] == units["plain ffcv"] == "images/s"
    assert all(line["rate"] > 0 for line in record["results"])
    assert record["settings"]["folder"] == tmp_path.name  # no path of this machine


def test_a_folder_without_photographs(tmp_path):
    with pytest.raises(DataError, match="no photographs"):
        photos.run(tmp_path)


def test_the_record_of_a_training():
    words = ["model=wrn-10-1", "batch=4", "ratio=2", "threads=1"]
    record = train.run("digits", words, readers=("resident", "dali"), steps=1, repetitions=1)
    json.dumps(record)
    assert record["what"] == "train" and record["settings"]["model"] == "wrn-10-1"
    assert set(record["data_wait"]) == {"resident", "dali"}
    assert set(record["ratio"]) == {"resident", "dali", "checkpoint"}
    rows = {line["name"]: line["rate"] for line in record["results"]}
    assert list(rows) == ["constant batch", "resident", "dali", "checkpoint"]
    assert 0 < rows["checkpoint"] < rows["constant batch"]
    share = rows["checkpoint"] / rows["constant batch"]
    assert record["ratio"]["checkpoint"] == pytest.approx(share, rel=0.1)
    assert all(0 <= share <= 1 for share in record["data_wait"].values())


class FakeClock:
    """A clock on which a loader takes `batch` seconds for a batch and a training takes `step`.

    The loader begins a batch when the one before it is done; the first begins when a stream of
    batches is asked for. Whoever asks for a batch waits until it is done by this clock, however
    the threads happen to run.
    """

    def __init__(self, batch, step):
        self.now = 0.0
        self.batch, self.step = batch, step
        self.ready = deque()  # when the batches that were made and not yet taken are done

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
        monkeypatch.setattr(train, "train_step", train_step)
        for module in (train, loader_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))


def test_a_slow_loader_is_seen_to_be_slow(data, monkeypatch):
    clock = FakeClock(batch=0.02, step=0.001)
    clock.install(monkeypatch)
    run = SimpleNamespace(device=SimpleNamespace(device=torch.device("cpu")))
    with pipelines.open_loader("digits", labels=40, batch=4, ratio=2) as loader:
        steps = train.Feeding(run, loader.iterate, 2, loader)
        for _ in range(3):
            assert steps() == pytest.approx(0.02)
            clock.now += 0.1  # what it could make meanwhile must not count
    assert steps.shares == pytest.approx([0.95] * 3)  # 0.019 of 0.02 seconds
    assert steps.share == pytest.approx(0.95) and steps.done == 6


def test_the_sentence_names_the_key_to_change():
    assert "The model is the bottleneck" in train.sentence({"ffcv": 0.001})
    assert "reader=ffcv" in train.sentence({"ffcv": 0.001, "dali": 0.3})
    assert "loader_threads" in train.sentence({"dali": 0.3})


def test_a_step_that_leaves_cores_idle_is_told():
    assert train.idle(1.6, 2) == ""
    assert "1.4 of 2 threads" in train.idle(1.4, 2)
