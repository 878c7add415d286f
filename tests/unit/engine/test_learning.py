"""Optimizer, average, scaler, intervals: each against a plain computation."""

import copy
import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn

from fastssl.config.resolve import load
from fastssl.config.schema import RunConfig
from fastssl.engine import devices, loop, optim
from fastssl.engine.build import assemble, build_model
from fastssl.engine.optim import GROWTH_EVERY, START, Ema, Scaler
from fastssl.engine.progress import TrainingProgress, evaluates
from fastssl.models import build
from tests.runs import TINY
from tests.steps import gradients


def test_one_dimensional_parameters_do_not_decay():
    model = build("resnet50", classes=3)
    decayed, free = optim.build(model, RunConfig()).param_groups
    assert free["weight_decay"] == 0 and decayed["weight_decay"] == 5e-4
    assert all(p.ndim == 1 for p in free["params"])
    names = {id(p): name for name, p in model.named_parameters()}
    assert any("downsample.1" in names[id(p)] for p in free["params"])
    assert len(free["params"]) + len(decayed["params"]) == len(names)


def test_sgd_equals_nesterov_written_out():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    config = RunConfig(lr=0.1, weight_decay=0.01, steps=10)
    optimizer = optim.build(model, config)
    weight, bias = (p.detach().clone() for p in (model.weight, model.bias))
    velocity = {"w": torch.zeros_like(weight), "b": torch.zeros_like(bias)}
    for step in range(4):
        x = torch.randn(5, 3)
        rate = optim.learning_rate(config, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        model(x).square().sum().backward()
        for name, p, decay in (("w", weight, 0.01), ("b", bias, 0.0)):
            gradient = (model.weight if name == "w" else model.bias).grad + decay * p
            velocity[name] = 0.9 * velocity[name] + gradient
            p -= rate * (gradient + 0.9 * velocity[name])
        optimizer.step()
    assert torch.allclose(model.weight, weight, atol=1e-6)
    assert torch.allclose(model.bias, bias, atol=1e-6)


def test_the_rate_follows_seven_sixteenths_of_a_cosine():
    config = RunConfig(steps=100)
    assert optim.learning_rate(config, 0) == 0.03
    assert optim.learning_rate(config, 50) == 0.03 * math.cos(7 * math.pi / 32)


def test_the_average_follows_parameters_and_takes_buffers():
    model = build("wrn-10-1", classes=3)
    ema = Ema(model, 0.9)
    before = copy.deepcopy(ema.model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
        for b in model.buffers():
            b.add_(3)
    ema.update(torch.ones(()))
    for name, value in ema.model.state_dict().items():
        moved = 0.1 if name in dict(model.named_parameters()) else 3
        assert torch.allclose(value.float(), before[name].float() + moved, atol=1e-6), name
    held = copy.deepcopy(ema.model.state_dict())
    ema.update(torch.zeros(()))
    assert all(torch.equal(v, held[k]) for k, v in ema.model.state_dict().items())


def test_a_run_in_double_precision_has_no_factor_in_single_precision(data, monkeypatch):
    resolved = load("digits", [*TINY, "algorithm=freematch", "ema=0.999"])
    built = build_model(resolved, 10, devices.choose(resolved.config)).double()
    monkeypatch.setattr("fastssl.engine.build.build_model", lambda *given: built)
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    feed.close()
    assert learner.fraction.dtype == learner.state["averages"].dtype == torch.float64
    with torch.no_grad():
        learner.model.classifier.bias.fill_(1)  # from 0
    learner.ema.update(torch.ones(()))
    assert learner.ema.model.classifier.bias[0].item() == 1 - 0.999


def test_an_eval_mode_teacher_does_not_depend_on_when_a_run_is_saved(data):
    resolved = load("digits", [*TINY])
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    loop.train_step(learner, feed.loader.batch(0), 0)
    feed.close()
    for own, theirs in zip(learner.ema.model.buffers(), learner.model.buffers(), strict=True):
        assert torch.equal(own, theirs)
    assert learner.model.bn.num_batches_tracked == 1


def test_the_scaler_halves_after_an_overflow_and_doubles_after_many_good_steps():
    model = nn.Linear(2, 1)
    scaler = Scaler(model, torch.device("cpu"), enabled=True)
    loss = model(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    assert scaler.unscale() == 0
    assert torch.allclose(model.weight.grad, torch.ones(1, 2))
    model.weight.grad.fill_(float("inf"))
    overflow = scaler.unscale()
    scaler.update(overflow)
    assert overflow == 1 and scaler.state["scale"] == START / 2 and scaler.state["skipped"] == 1
    for _ in range(GROWTH_EVERY):
        scaler.update(torch.zeros(()))
    assert scaler.state["scale"] == START


def test_evaluations_come_closer_in_the_last_fifth():
    config = RunConfig(steps=100, eval_every=20, eval_every_late=5)
    steps = [step for step in range(1, 101) if evaluates(config, step)]
    assert steps == [20, 40, 60, 80, 85, 90, 95, 100]
    assert evaluates(RunConfig(steps=7), 7)


def test_best_and_median_of_the_last_twenty():
    progress, errors = TrainingProgress(), [50 - k + (k * 7) % 5 for k in range(30)]
    improved = []
    for step, error in enumerate(errors):
        progress.step = step
        improved.append(progress.add_evaluation({"error": error}))
    assert progress.best_error == min(errors) and progress.best_step == errors.index(min(errors))
    assert progress.median_error == statistics.median(errors[-20:])
    assert improved[0] and sum(improved) < 30


def test_validation_chooses_and_the_test_set_reports():
    progress = TrainingProgress(step=1)
    assert progress.add_evaluation({"error": 10.0, "validation_error": 5.0})
    progress.step = 2
    assert not progress.add_evaluation({"error": 1.0, "validation_error": 6.0})
    assert (progress.best_error, progress.best_step) == (10.0, 1)


def test_a_step_in_parts_gives_the_means_of_its_parts(data):
    resolved = load("digits", [*TINY, "accumulate=2", "algorithm=fixmatch", "algo.threshold=0.1"])
    learner, feed = assemble(resolved, devices.choose(resolved.config))
    batch = feed.loader.batch(0)
    nets, state = copy.deepcopy((learner.nets, learner.state))
    outs = []
    for part, (labeled, rest) in enumerate([(slice(5), slice(10)), (slice(5, 10), slice(10, 20))]):
        piece = replace(
            batch,
            images=batch.images[labeled],
            labels=batch.labels[labeled],
            views={name: view[rest] for name, view in batch.views.items()},
            position=batch.position[rest],
            global_positions=batch.global_positions[rest],
            key=batch.key + part,
        )
        outs.append(
            learner.step(nets, piece, state, resolved.settings, learner.fraction, learner.ranks)
        )
        outs[-1].loss.backward()
    found = loop.backward(learner, batch)
    feed.loader.close()

    def by_hand(values):
        one, other = map(float, values)
        assert one != other  # or else the last part alone would do
        return pytest.approx((one + other) / 2, rel=1e-6)

    assert float(found.loss) == by_hand([out.loss.detach() for out in outs])
    assert found.metrics.keys() == outs[0].metrics.keys() >= {"loss/labeled", "loss/unlabeled"}
    for name in ("loss/labeled", "loss/unlabeled"):
        assert float(found.metrics[name]) == by_hand([out.metrics[name] for out in outs])
    assert torch.equal(found.pseudo_label, outs[1].pseudo_label)
    summed = gradients(nets.student)
    for name, mine in gradients(learner.model).items():
        torch.testing.assert_close(mine, summed[name] / 2)
