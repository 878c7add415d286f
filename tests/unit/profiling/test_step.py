"""A step and its reference: the record, equal losses, a process apart, arithmetic by hand."""

import copy
import json
import os

import pytest
import torch

from fastssl.engine.loop import train_step
from fastssl.profiling import step
from fastssl.profiling.apart import Apart
from fastssl.profiling.parts import make_batch, make_run, widen
from fastssl.profiling.reference import Reference
from fastssl.profiling.where_time import arithmetic, convolutions

TINY = {"model": "wrn-10-1", "batch": 2, "size": 8, "images": 50, "threads": 1}


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def counting(start):
    calls = [start]

    def case():
        calls[0] += 1
        return calls[0], os.getpid()

    return case


def leaving():
    return lambda: os._exit(3)


def test_a_case_apart_keeps_its_state_in_another_process():
    with Apart(counting, 5) as case:
        first, second = case(), case()
    assert [first[0], second[0]] == [6, 7]
    assert first[1] == second[1] != os.getpid()
    assert not case.process.is_alive()


def test_a_case_apart_that_dies_is_told():
    with Apart(leaving) as case, pytest.raises(RuntimeError, match="ended before its value"):
        case()


def test_operations_of_a_convolution_are_counted_as_by_hand():
    conv = torch.nn.Conv2d(3, 5, 3, padding=1)
    pictures = torch.rand(2, 3, 8, 8, requires_grad=True)
    rows = [{"name": "aten::conv", "ms": 0.001}, {"name": "aten::add", "ms": 9.0}]
    rates = arithmetic(lambda: conv(pictures).sum().backward() or 0.0, {"one": rows})
    forward = 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)  # a multiplication and an addition each
    assert rates["one"] == round(3 * forward / 1e3, 1)  # backward: by weights and by pictures
    assert rates["product"] > 0


def test_the_share_of_convolutions():
    rows = [{"name": "aten::conv", "share": 0.5}, {"name": "aten::mm", "share": 0.5}]
    assert convolutions(rows) == 0.5


def test_the_record_of_a_step():
    record = step.run(**TINY, repetitions=1)
    json.dumps(record)
    assert set(record["ratio"]) == {"reference", "split", "bf16"}
    assert {row["name"] for row in record["results"]} == {
        "fastssl",
        "fastssl, forward=split",
        "fastssl, precision=bf16",
        "reference",
    }
    assert record["losses_apart"] <= step.CLOSE
    assert min(record["gflops"].values()) > 0
    assert set(record["gflops"]) == {"fastssl", "reference", "product"}
    for rows in (record["time"]["fastssl"], record["time"]["reference"]):
        assert rows[0]["ms"] >= rows[1]["ms"] > 0 and any("conv" in row["name"] for row in rows)
    assert "reference spends" in record["says"]
    assert "collectives" in record["says"] and record["collectives"]["calls"] > 0


def test_both_ways_agree_where_marks_decide():
    run = make_run("wrn-10-1", 4, 8, 60, double=True)
    with torch.no_grad():
        for net in (run.model, run.ema.model):
            net.classifier.weight.mul_(40)  # sure enough to be marked
    other = Reference(copy.deepcopy(run.model), 60, 10, run.resolved.settings.threshold)
    for number in range(3):
        batch = widen(make_batch(4, 8, 60, number))
        mine = train_step(run, batch, 0, torch.zeros(())).loss
        torch.testing.assert_close(mine.detach(), other.step(batch), rtol=1e-6, atol=1e-6)
        assert torch.equal(run.state["marks"].long(), other.marks)
    assert (other.marks >= 0).sum() > 10
    average = dict(run.ema.model.named_parameters())
    torch.testing.assert_close(other.average["classifier.weight"], average["classifier.weight"])


def test_two_ways_that_differ_are_not_timed(monkeypatch):
    monkeypatch.setattr(Reference, "thresholds", lambda self: torch.ones(self.classes))
    with pytest.raises(AssertionError, match="differ"):
        step.compare(step.Options(**TINY))
