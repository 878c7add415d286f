"""The divergence flag: a bad step changes nothing, and nothing moves after it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastssl.config.resolve import load
from fastssl.distributed.collectives import SingleRank
from fastssl.engine import devices, loop
from fastssl.engine.build import assemble
from fastssl.engine.nonfinite import NonFiniteCheck
from fastssl.errors import DivergedError
from fastssl.models import build
from tests.fake_cuda import fake_cuda, no_host_wait
from tests.runs import TINY, assert_same


@pytest.fixture
def run(data):
    resolved = load("digits", TINY)
    made = assemble(resolved, devices.choose(resolved.config))
    yield made
    made.loader.close()


def frozen_parts(run):
    return copy.deepcopy(
        {
            "model": run.model.state_dict(),
            "ema": run.ema.model.state_dict(),
            "momentum": run.optimizer.state_dict()["state"],
            "state": run.state,
        }
    )


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_bad_step_and_all_after_it_leave_everything_as_it_was(run, where):
    progress = torch.zeros(())
    loop.train_step(run, run.loader.batch(0), 0, progress)
    before = frozen_parts(run)
    real = run.algorithm.step

    def bad(*arguments):
        out = real(*arguments)
        weight = next(run.model.parameters())
        # the second: a finite value whose gradient is not
        poison = weight.sum() * torch.nan if where == "loss" else (weight * 0).sum().sqrt()
        return type(out)(out.loss + poison, out.metrics, out.tables, out.pseudo_label, out.trusted)

    run.step = bad
    loop.train_step(run, run.loader.batch(1), 1, progress)
    run.step = real
    loop.train_step(run, run.loader.batch(2), 2, progress)
    assert int(run.nonfinite.bad_step) == 1
    assert_same(before, frozen_parts(run), "parts")


@pytest.mark.parametrize("part", [0, 1])
def test_a_bad_loss_of_any_part_of_a_step_is_seen(data, part):
    resolved = load("digits", [*TINY, "micro_batch=2"])
    run = assemble(resolved, devices.choose(resolved.config))
    before, real, calls = frozen_parts(run), run.step, []

    def bad(*arguments):
        out = real(*arguments)
        calls.append(len(calls))
        # a number: it has no gradient that would tell of it
        return replace(out, loss=out.loss + torch.nan) if calls[-1] == part else out

    run.step = bad
    loop.train_step(run, run.loader.batch(0), 0, torch.zeros(()))
    run.loader.close()
    assert calls == [0, 1] and int(run.nonfinite.bad_step) == 0
    after = frozen_parts(run)
    for key in ("model", "ema", "state"):
        assert_same(before[key], after[key], key)


def test_a_good_step_moves_everything(run):
    before = frozen_parts(run)
    loop.train_step(run, run.loader.batch(0), 0, torch.zeros(()))
    after = frozen_parts(run)
    assert not torch.equal(
        before["model"]["classifier.weight"], after["model"]["classifier.weight"]
    )
    assert not torch.equal(before["ema"]["classifier.weight"], after["ema"]["classifier.weight"])
    assert int(run.nonfinite.bad_step) == -1


def test_the_message_names_step_rate_and_logit(run):
    run.nonfinite.bad_step.fill_(7)
    made = loop.Training(run, loop.TrainingProgress(), None, None, None)
    with pytest.raises(DivergedError, match=r"step 8 \(learning rate .* largest logit") as caught:
        made.check_finite(run.loader.batch(0))
    assert caught.value.exit_code == 4


class Odd(nn.Module):
    """Buffers of several types, shapes and strides, with bits that arithmetic would not keep."""

    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.tensor([1.5, -0.0, torch.nan, torch.inf, 1e-45]))
        self.register_buffer("count", torch.tensor(2**53 + 1))
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("halves", torch.tensor([[0.1], [2.0]], dtype=torch.bfloat16))
        pixels = torch.arange(24.0).view(1, 2, 3, 4)
        self.register_buffer("strided", pixels.contiguous(memory_format=torch.channels_last))
        self.register_buffer("none", torch.empty(0, 3))


def bits(tensors):
    return [t.contiguous().flatten().view(torch.uint8).tolist() for t in tensors if t.numel()]


@pytest.mark.parametrize("fine", [True, False])
def test_buffers_keep_their_bits_after_a_good_step_and_get_them_back_after_a_bad_one(fine):
    model, memory = Odd(), {"rows": torch.arange(6.0), "share": torch.tensor([0.5, 0.25])}
    nonfinite, positions = (
        NonFiniteCheck(model, memory, 6, torch.device("cpu")),
        torch.tensor([4, 1, 4]),
    )
    held = [*model.buffers(), *memory.values()]
    before, addresses = bits(held), [t.data_ptr() for t in held]
    nonfinite.remember(positions)
    for tensor in model.buffers():
        tensor.copy_(tensor.logical_not() if tensor.dtype == torch.bool else tensor + 3)
    model.values[0] = -torch.nan
    memory["share"].fill_(torch.inf)
    memory["rows"][positions] = torch.nan
    after = bits(held)
    nonfinite.alive.fill_(float(fine))
    nonfinite.settle(positions)
    assert bits(held) == (after if fine else before) and after != before
    assert [t.data_ptr() for t in held] == addresses


def test_many_buffers_are_kept_with_as_few_launches_as_few():
    class Counted(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops += 1
            return func(*args, **(kwargs or {}))

    found = {}
    for name in ("wrn-10-1", "wrn-28-2"):
        model = build(name, classes=10)
        nonfinite = NonFiniteCheck(model, {"rows": torch.zeros(9)}, 9, torch.device("cpu"))
        with Counted() as counted:
            nonfinite.remember(torch.arange(4))
            nonfinite.settle(torch.arange(4))
        found[len(list(model.buffers()))] = counted.ops
    few, many = sorted(found)
    assert many > 2 * few and found[few] == found[many] < 20, found


def test_nothing_of_it_waits_for_a_gpu():
    with fake_cuda():
        model = nn.Linear(2, 9, device="cuda")
        for name in ("mean", "variance"):
            model.register_buffer(name, torch.zeros(9, device="cuda"))
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        positions = torch.zeros(4, dtype=torch.int64, device="cuda")
        state = {"rows": torch.zeros(9, device="cuda"), "count": positions[:1]}
        nonfinite = NonFiniteCheck(model, state, 9, torch.device("cuda"))
        loss = torch.zeros((), device="cuda")
        with no_host_wait():
            nonfinite.remember(positions)
            nonfinite.judge(loss, 3, SingleRank())
            nonfinite.settle(positions)
