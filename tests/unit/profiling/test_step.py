"""The records of a step and of the curriculum."""

import json

import pytest
import torch

from fastssl.profiling import cpl, step
from fastssl.profiling.subjects import CplOptions, StepOptions


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_record_of_a_step_adds_up():
    options = StepOptions(model="wrn-10-1", batch=2, size=8, images=50, threads=1, repetitions=1)
    record = step.run(options)
    json.dumps(record)
    rows = {row["name"]: row for row in record["results"]}
    assert set(rows) == {"fastssl", "fastssl, forward=split", "fastssl, precision=bf16"}
    assert set(record["ratio"]) == {"split", "bf16"}
    ours, split = rows["fastssl"]["ms"], rows["fastssl, forward=split"]["ms"]
    assert record["ratio"]["split"] == pytest.approx(ours / split, rel=0.01)
    assert rows["fastssl"]["rate"] == pytest.approx(16_000 / ours, rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_record_of_the_curriculum_has_growth_and_one_kernel():
    options = CplOptions(images=(100, 1000), classes=5, batch=8, repetitions=2, updates=10)
    record = cpl.run(options)
    assert record["what"] == "cpl" and set(record["ratio"]) == {"growth"}
    assert record["generated"] == {"kernels": 1, "calls": 1, "fallbacks": 0}
    assert {row["name"] for row in record["results"]} == {"fastssl", "eager"}
