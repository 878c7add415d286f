"""The divergence flag: a bad step changes nothing, and nothing moves after it."""

import copy

import pytest
import torch

from fastssl import devices, training
from fastssl.assemble import assemble
from fastssl.config_files import load
from fastssl.errors import DivergedError
from tests.runs import TINY, assert_same


@pytest.fixture
def run(data):
    loaded = load("digits", TINY)
    made = assemble(loaded, devices.choose(loaded.config))
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
    training.take_step(run, run.loader.batch(0), 0, progress)
    before = frozen_parts(run)
    real = run.algorithm.step

    def bad(*arguments):
        out = real(*arguments)
        weight = next(run.model.parameters())
        # the second: a finite value whose gradient is not
        poison = weight.sum() * torch.nan if where == "loss" else (weight * 0).sum().sqrt()
        return type(out)(out.loss + poison, out.metrics, out.tables, out.guess, out.trusted)

    run.step = bad
    training.take_step(run, run.loader.batch(1), 1, progress)
    run.step = real
    training.take_step(run, run.loader.batch(2), 2, progress)
    assert int(run.guard.bad_step) == 1
    assert_same(before, frozen_parts(run), "parts")


def test_a_good_step_moves_everything(run):
    before = frozen_parts(run)
    training.take_step(run, run.loader.batch(0), 0, torch.zeros(()))
    after = frozen_parts(run)
    assert not torch.equal(
        before["model"]["classifier.weight"], after["model"]["classifier.weight"]
    )
    assert not torch.equal(before["ema"]["classifier.weight"], after["ema"]["classifier.weight"])
    assert int(run.guard.bad_step) == -1


def test_the_message_names_step_rate_and_logit(run):
    run.guard.bad_step.fill_(7)
    made = training.Training(run, training.Trip(), None, None, None)
    with pytest.raises(DivergedError, match=r"step 8 \(learning rate .* largest logit") as caught:
        made.check_finite(run.loader.batch(0))
    assert caught.value.exit_code == 4
