"""What `compile=auto` decides, that it is kept, and what is logged of the compiler's work."""

import copy
import logging
import random

import numpy as np
import pytest
import torch
import yaml

from fastssl.algorithms.base import StepOutput
from fastssl.config.resolve import load
from fastssl.engine import compilation, devices
from fastssl.engine.build import assemble
from fastssl.errors import ResourceError
from tests import runs
from tests.installed import needs_compiler


@pytest.fixture
def run(data):
    resolved = load("digits", [*runs.TINY, "steps=1000", "compile=auto", "accumulate=2"])
    made = assemble(resolved, devices.choose(resolved.config))
    yield made
    made.data.loader.close()


def test_a_short_run_on_a_cpu_is_not_compiled_and_the_config_says_so(run, caplog):
    caplog.set_level(logging.INFO)
    compilation.choose(run.learner, run.data.loader, 0)
    assert run.learner.resolved.config.compile == "off"
    assert run.learner.step is run.learner.algorithm.step
    message = caplog.messages
    assert "measuring" in message[0], "the reason is logged before the wait"
    assert "too short" in message[1] and len(message) == 2


@pytest.mark.parametrize(("compiled", "wanted"), [(0.5, "step"), (2.0, "off")])
def test_a_long_run_takes_what_is_faster(run, monkeypatch, caplog, compiled, wanted):
    caplog.set_level(logging.INFO)

    def seconds(learner, batch, step):
        return 1.0 if step is learner.algorithm.step else compiled

    monkeypatch.setattr(compilation, "seconds", seconds)
    monkeypatch.setattr(compilation, "SHORT", 100)
    compilation.choose(run.learner, run.data.loader, 0)
    message = caplog.messages
    assert ["measuring" in line for line in message[:3]] == [True, True, False]
    assert any("first step" in line for line in message[3:]) == (wanted == "step")
    assert run.learner.resolved.config.compile == wanted
    assert isinstance(run.learner.step, compilation.Compiled) == (wanted == "step")
    assert "1000 ms" in message[2] and f"{1000 * compiled:.0f} ms compiled" in message[2]


def test_measuring_leaves_the_run_as_it_was(run):
    learner, sizes = run.learner, []

    def everything():
        nets = [net.state_dict() for net in (learner.model, learner.ema.model)]
        own = [*nets, learner.state, learner.quality.sums, learner.optimizer.state_dict()]
        generators = [torch.get_rng_state(), repr(np.random.get_state()), random.getstate()]
        return copy.deepcopy([*own, *generators, learner.stepped, run.data.loader.waited])

    def drawing(nets, batch, *others):
        sizes.append((len(batch.images), len(batch.position)))
        torch.rand(3)
        return learner.algorithm.step(nets, batch, *others)

    before = everything()
    assert compilation.seconds(learner, run.data.loader.batch(0), drawing) > 0
    runs.assert_same(before, everything(), "")
    assert all(p.grad is None for p in learner.model.parameters())
    assert sizes == 2 * (compilation.TIMED + 1) * [(5, 10)], "the parts that `accumulate` sets"


def test_what_was_chosen_is_kept_on_resume(data, tmp_path):
    out = tmp_path / "run"
    averages = ["ema=auto", "bn_momentum=auto"]
    assert runs.train(out, "steps=3", *averages) == 0
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["compile"] == "off" and config["precision"] == "fp32"
    assert (config["ema"], config["bn_momentum"]) == (0.817426, 0.1)
    # As a run of 0.1.0: the paper's averages, whatever `auto` chooses today.
    changed = {"compile": "max", "threads": 3, "ema": 0.999, "bn_momentum": None}
    (out / "config.yaml").write_text(yaml.safe_dump({**config, **changed}))
    words = [*runs.TINY, "steps=3", "compile=auto", "threads=auto", *averages]
    resolved = load("digits", words)
    from fastssl.engine.launch import same_run
    from fastssl.tracking.run_dir import RunFolder

    kept = same_run(resolved, RunFolder(out))
    assert (kept.config.compile, kept.config.precision, kept.config.threads) == ("max", "fp32", 3)
    assert kept.config.averages() == {"ema": 0.999, "bn_momentum": None}
    other = same_run(load("digits", [*words, "threads=2"]), RunFolder(out))
    assert other.config.threads == 2, "typed as another number on purpose"


def tiny(x):
    return StepOutput(loss=(x * 2).sum(), metrics={})


def broken(x):
    torch._dynamo.graph_break()
    return StepOutput(loss=(x * 2).sum(), metrics={})


def test_a_recompile_after_the_warm_up_is_reported_with_its_reason(caplog):
    caplog.set_level(logging.INFO, compilation.__name__)
    torch._dynamo.reset()
    torch.compile(broken, backend="eager")(torch.ones(4))  # a break of another step
    step = compilation.Compiled(tiny, "step", 1, backend="eager")
    for _ in range(5):
        step(torch.ones(4))
    assert not caplog.messages
    step(torch.ones(4, 5))
    assert "compiled anew in call 6: tiny" in caplog.messages[0]


@pytest.mark.slow
@needs_compiler
def test_a_second_start_is_warm_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, compilation.__name__)
    warm = []
    for _ in range(2):
        torch._dynamo.reset()  # forgets what is in memory, as a new process does
        step = compilation.Compiled(tiny, "step", 1)
        step(torch.ones(4, requires_grad=True)).loss.backward()
        warm.append("warm start" in caplog.text)
    assert warm == [False, True]


def test_a_graph_break_is_reported_by_name_over_ranks_and_refused_in_one_process(caplog):
    caplog.set_level(logging.INFO, compilation.__name__)
    torch._dynamo.reset()
    before = torch._dynamo.config.optimize_ddp
    try:
        step = compilation.Compiled(broken, "step", 2, backend="eager")
        assert step(torch.ones(4)).loss == 8
    finally:
        torch._dynamo.config.optimize_ddp = before
    assert any("graph break" in line for line in caplog.messages)
    torch._dynamo.reset()
    with pytest.raises(ResourceError, match="can't be compiled"):
        compilation.Compiled(broken, "step", 1, backend="eager")(torch.ones(4))
