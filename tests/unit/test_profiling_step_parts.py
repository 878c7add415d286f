"""What a step's record rests on: cases in processes of their own, and arithmetic by hand."""

import os

import pytest
import torch

from fastssl.profiling.apart import Apart
from fastssl.profiling.where_time import arithmetic, convolutions


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
