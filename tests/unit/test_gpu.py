"""What only a machine with GPUs can show; skipped elsewhere, run by tools/gpu_acceptance.py."""

import logging

import numpy as np
import pytest
import torch

from fastssl.algorithms import ALGORITHMS
from fastssl.engine.loop import train_step
from fastssl.profiling.synthetic import make_batch, synthetic_learner
from tests import ranked, runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_whole_step_never_waits(name):
    run = synthetic_learner("wrn-10-1", 4, 100, algorithm=name, device="cuda")
    views = tuple(ALGORITHMS[name].views)
    batches = [make_batch(4, 32, 100, seed, "cuda", views=views) for seed in range(3)]
    train_step(run, batches[0], 0)  # cuDNN looks for its fastest way
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number, batch in enumerate(batches[1:]):
            train_step(run, batch, number + 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(run.nonfinite.bad_step) == -1


@pytest.mark.parametrize("size", [32, 96, 224])
def test_both_view_kernels_give_the_same_bytes(size):
    from pipelines.views import apply, draw, kernel_torch, recipes

    images = np.random.default_rng(0).integers(0, 256, (64, size, size, 3), dtype=np.uint8)
    mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    made = recipes(flip=True, padding=4, size=(size, size))
    where = {"seed": 0, "step": 1, "stream": 1, "slots": np.arange(64), "size": (size, size)}
    for view, recipe in enumerate(made.values()):
        drawn = draw(recipe, view=view, **where)
        (ours,) = apply(images, [drawn], [recipe], mean=mean, std=std)
        (theirs,) = kernel_torch.apply(
            torch.from_numpy(images).cuda(),
            [torch.from_numpy(drawn).cuda()],
            [recipe],
            mean=mean,
            std=std,
        )
        assert np.array_equal(theirs.permute(0, 2, 3, 1).cpu().numpy(), ours)


def losses(out, processes, *words):
    """Train digits in double precision, one process a GPU, and return the losses."""
    words = (*words, f"batch={8 * torch.cuda.device_count()}", "steps=50", "log_every=1")
    words += ("eval_every=50", "device=cuda", "precision=fp32")
    codes = ranked.train(processes, out, *words, before=ranked.in_double)
    assert codes == [0] * processes, ranked.message(out, 0)
    return [line["loss"] for line in runs.metrics(out) if line["kind"] == "train"]


@several
@pytest.mark.parametrize("name", ["flexmatch", "uda", "mixmatch", "remixmatch", "freematch"])
def test_all_gpus_learn_what_one_does(name, data, tmp_path):
    one = losses(tmp_path / "one", 1, f"algorithm={name}")
    every = losses(tmp_path / "all", torch.cuda.device_count(), f"algorithm={name}")
    assert len(one) == 50 and every == pytest.approx(one, abs=1e-4)


def test_a_compiled_step_computes_what_is_written(caplog):
    from fastssl.engine.compilation import Compiled

    found = []
    caplog.set_level(logging.INFO)
    for compiled in (False, True):
        run = synthetic_learner("wrn-10-1", 4, 100, device="cuda")
        if compiled:
            run.step = Compiled(run.algorithm.step, "step", 1)
        batches = [make_batch(4, 32, 100, seed, "cuda") for seed in range(6)]
        outs = [train_step(run, batch, n) for n, batch in enumerate(batches)]
        found.append([float(out.loss.detach()) for out in outs])
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-2)
    assert not [line for line in caplog.messages if "anew" in line or "break" in line]
