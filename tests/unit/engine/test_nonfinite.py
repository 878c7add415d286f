"""The non-finite check: weights stay after a bad step, and nothing is saved."""

import copy
import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks
from fastssl.engine import devices, loop
from fastssl.engine.build import assemble
from fastssl.engine.optim import NonFiniteCheck, Scaler
from fastssl.errors import DivergedError
from tests import runs
from tests.fake_cuda import fake_cuda, no_host_wait
from tests.runs import TINY, assert_same


@pytest.fixture(params=["sgd", "adamw", "muon"])
def run(data, request):
    resolved = load("digits", [*TINY, f"optimizer={request.param}", "lr=0.03"])
    made = assemble(resolved, devices.choose(resolved.config))
    yield made
    made.data.loader.close()


def weights(learner):
    return copy.deepcopy(
        {
            "model": dict(learner.model.named_parameters()),
            "ema": dict(learner.ema.model.named_parameters()),
            "momentum": learner.optimizer.state_dict()["state"],
        }
    )


def poisoned(out, learner, where):
    weight = next(learner.model.parameters())
    # the second: a finite value whose gradient is not
    poison = weight.sum() * torch.nan if where == "loss" else (weight * 0).sum().sqrt()
    return replace(out, loss=out.loss + poison)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_weights_momenta_and_ema_stay_from_a_bad_step_on(run, where):
    learner, loader = run.learner, run.data.loader
    loop.train_step(learner, loader.batch(0), 0)
    before, real = weights(learner), learner.step
    learner.step = lambda *arguments: poisoned(real(*arguments), learner, where)
    loop.train_step(learner, loader.batch(1), 1)
    learner.step = real
    loop.train_step(learner, loader.batch(2), 2)
    assert int(learner.nonfinite.bad_step) == 1
    assert_same(before, weights(learner), "weights")


@pytest.mark.parametrize("part", [0, 1])
def test_a_bad_loss_of_any_part_of_a_step_is_seen(data, part):
    resolved = load("digits", [*TINY, "accumulate=2"])
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    before, real, calls = weights(learner), learner.step, []

    def bad(*arguments):
        out = real(*arguments)
        calls.append(len(calls))
        # a constant: it has no gradient that would show it
        return replace(out, loss=out.loss + torch.nan) if calls[-1] == part else out

    learner.step = bad
    loop.train_step(learner, feed.loader.batch(0), 0)
    feed.loader.close()
    assert calls == [0, 1] and int(learner.nonfinite.bad_step) == 0
    after = weights(learner)
    for key in ("model", "ema"):
        assert_same(before[key], after[key], key)


def test_a_good_step_moves_everything(run):
    learner = run.learner
    before = weights(learner)
    loop.train_step(learner, run.data.loader.batch(0), 0)
    after = weights(learner)
    for key in ("model", "ema"):
        assert not torch.equal(before[key]["classifier.weight"], after[key]["classifier.weight"])
    assert int(learner.nonfinite.bad_step) == -1


def test_the_message_names_step_rate_and_a_finite_logit(run):
    run.learner.nonfinite.bad_step.fill_(7)
    for buffer in run.learner.model.buffers():  # as a bad step may leave them
        buffer.fill_(torch.nan) if buffer.is_floating_point() else None
    made = loop.Training(*run, loop.TrainingProgress(), None, None, None)
    said = r"step 8 \(learning rate .* largest logit before it \d"
    with pytest.raises(DivergedError, match=said) as caught:
        made.check_finite(run.data.loader.batch(0))
    assert caught.value.exit_code == 4


def poison_step(number):
    """Let a step of this process have a loss that is not finite."""
    real = loop.backward

    def backward(learner, batch):
        out = real(learner, batch)
        step = round(float(learner.fraction) * learner.resolved.config.steps)
        return replace(out, loss=out.loss * torch.nan) if step == number else out

    loop.backward = backward


def test_no_checkpoint_is_written_after_a_bad_step(data, tmp_path):
    out, every = tmp_path / "run", ["checkpoint_every=1", "log_every=1", "eval_every=1"]
    assert runs.train(out, "steps=6", *every, before=partial(poison_step, 3)) == 4
    assert {path.name for path in (out / "checkpoints").glob("step-*")} == {
        "step-00000002.ckpt",
        "step-00000003.ckpt",
    }
    assert runs.last(out)["trip"]["step"] == 3
    assert max(line["step"] for line in runs.metrics(out)) == 3
    assert json.loads((out / "summary.json").read_text())["exit"] == 4


@pytest.mark.parametrize(
    ("loss", "scale", "bad"), [(1.0, 1.0, -1), (1.0, 0.5, 5), (float("nan"), 64.0, 5)]
)
def test_an_fp16_overflow_is_not_divergence_unless_the_scale_is_below_one(run, loss, scale, bad):
    learner = run.learner
    learner.scaler = Scaler(learner.model, torch.device("cpu"), enabled=True)
    learner.scaler.state["scale"].fill_(scale)
    before, real = weights(learner)["model"], learner.step

    def overflowing(*arguments):
        out = poisoned(real(*arguments), learner, "gradient")
        return replace(out, loss=out.loss * 0 + loss)

    learner.step = overflowing
    loop.train_step(learner, run.data.loader.batch(0), 5)
    assert int(learner.nonfinite.bad_step) == bad
    assert learner.scaler.state["skipped"] == 1
    assert_same(before, weights(learner)["model"], "weights")


def test_nothing_of_it_waits_for_a_gpu():
    with fake_cuda():
        model = nn.Linear(2, 9, device="cuda")
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        nonfinite = NonFiniteCheck(model, torch.device("cuda"))
        with no_host_wait():
            finite = Ranks().mean(torch.zeros((), device="cuda")) == 1
            nonfinite.update(finite & nonfinite.gradients_are_finite(), 3)
