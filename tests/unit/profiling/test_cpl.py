"""The measurement of the curriculum: the peer does the same work, and the record says it all."""

import pytest
import torch

from fastssl.algorithms.common import cpl
from fastssl.errors import ConfigError
from fastssl.profiling import cpl as profile


def test_the_peer_decides_and_remembers_the_same():
    asked = profile.Options(images=(400,), classes=7, batch=16)
    one, other = profile.Work(asked, 400), profile.Work(asked, 400)
    for batch in one.batches:  # the peer leaves open which of two equal positions wins
        batch.global_positions.copy_(torch.randperm(400)[:16])
    other.position = [batch.global_positions for batch in one.batches]
    for _ in range(30):
        assert torch.equal(one.ours(cpl.curriculum), other.counter())
    assert torch.equal(one.state["marks"].long(), other.marks)


def test_an_unknown_option_is_named():
    with pytest.raises(ConfigError, match="speed"):
        profile.run(speed=1)


def test_a_device_that_is_not_supported_is_told():
    with pytest.raises(ConfigError, match="not supported"):
        profile.run(images=(50,), device="meta")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_record():
    record = profile.run(images=(100, 1000), classes=5, batch=8, repetitions=2, updates=10)
    assert record["what"] == "cpl" and set(record["ratio"]) == {"counter", "growth"}
    assert record["generated"] == {"kernels": 1, "calls": 1, "fallbacks": 0}
    assert {row["name"] for row in record["results"]} == {"fastssl", "eager", "counter"}
