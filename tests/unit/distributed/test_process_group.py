"""Two CPU ranks: equal to one process, refusing what differs, stopping and failing together."""

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from fastssl.algorithms.base import DatasetInfo
from fastssl.config.resolve import load
from fastssl.distributed import sync_batchnorm
from fastssl.distributed.collectives import Ranks
from fastssl.distributed.process_group import difference, join, joined, wrap
from fastssl.engine import accumulate, devices, dry_run, launch
from fastssl.engine.build import build_model, make_learner
from fastssl.engine.build_data import make_data
from fastssl.engine.loop import train_step
from fastssl.errors import ConfigError, DataError, ResourceError
from fastssl.profiling.synthetic import make_batch, to_double
from tests import ranked, runs
from tests.process_output import PATIENCE
from tests.small_stores import make_store

SETTINGS = ("batch=12", "steps=6", "log_every=1", "eval_every=6", "eval_every_late=6")
TRUSTING = ("algo.threshold=0.05",)  # below 1/10: every pseudo-label is trusted
FIVE = ("flexmatch", "uda", "mixmatch", "remixmatch", "freematch")
# so low that a network of a few steps marks and trusts something
LOW = {"flexmatch": ("algo.threshold=0.2",), "uda": ("algo.threshold=0.2",)}


def equal_runs(folder, name, steps):
    one, two = folder / "one", folder / "two"
    words = (*SETTINGS, f"algorithm={name}", f"steps={steps}", f"eval_every={steps}")
    words += LOW.get(name, ())
    before = ranked.in_double
    assert ranked.train(1, one, *words, before=before) == [0]
    assert ranked.train(2, two, *words, before=before) == [0, 0]
    for a, b in zip(runs.metrics(one), runs.metrics(two), strict=True):
        assert a.keys() == b.keys()
        assert abs(a["loss"] - b["loss"]) < 1e-4, (a["step"], a["loss"], b["loss"])
        for key in ("trusted", "pseudo/coverage", "error", "class_accuracy"):
            assert a.get(key) == pytest.approx(b.get(key), abs=1e-6)
        assert a.get("tables", {}).keys() == b.get("tables", {}).keys()
        for table in a.get("tables", {}):
            assert a["tables"][table] == pytest.approx(b["tables"][table], abs=1e-6)
    first, second = runs.last(one)["state"], runs.last(two)["state"]
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=0, atol=1e-6)
    if "marks" in first:
        assert torch.equal(first["marks"], second["marks"])
        assert (first["marks"] >= 0).any(), "nothing was marked: equal marks say nothing"
    shares = [line["trusted"] for line in runs.metrics(one) if "trusted" in line]
    assert not shares or max(shares) > 0, "nothing was trusted: the equal runs are supervised ones"


@pytest.mark.parametrize("name", ["flexmatch", "remixmatch"])
def test_two_ranks_equal_one_process(name, data, tmp_path):
    equal_runs(tmp_path, name, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_two_ranks_equal_one_process_for_fifty_steps(name, data, tmp_path):
    equal_runs(tmp_path, name, 50)


def stop_the_last_rank(rank):
    """Let a launcher signal one rank alone to stop, in its third step."""
    ranked.in_double(rank)
    if rank == int(os.environ["WORLD_SIZE"]) - 1:
        runs.before_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_all_stop_at_one_step_and_go_on_with_another_number_of_ranks(first, then, data, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    words = (*SETTINGS, "algo.threshold=0.15")
    before = ranked.in_double
    assert ranked.train(1, whole, *words, before=before) == [0]
    assert ranked.train(first, out, *words, before=stop_the_last_rank) == [143] * first
    stopped = runs.last(out)
    assert stopped["trip"]["step"] == 3
    assert json.loads((out / "summary.json").read_text())["status"] == "interrupted"
    assert ranked.train(then, out, *words, resume=True, before=before) == [0] * then
    for a, b in zip(runs.metrics(whole), runs.metrics(out), strict=True):
        assert (a["step"], a["kind"]) == (b["step"], b["kind"])
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
    marks = [runs.last(one)["state"]["marks"] for one in (whole, out)]
    assert torch.equal(*marks) and (marks[0] >= 0).any()


def test_a_rank_without_an_image_to_evaluate_takes_part(data, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    words = (*SETTINGS, "steps=2", "validation=1")  # the second rank's share of it is empty
    assert ranked.train(1, one, *words, before=ranked.in_double) == [0]
    assert ranked.train(2, two, *words, before=ranked.in_double) == [0, 0], ranked.message(two, 1)
    alone, shared = (runs.metrics(out)[-1] for out in (one, two))
    assert alone["validation_error"] == shared["validation_error"]
    assert alone["error"] == pytest.approx(shared["error"])


def bad_data(rank):
    if rank == 1:
        runs.before_step(2, raise_bad_data)


def raise_bad_data():
    raise DataError("image 7 is damaged", "convert it again")


def test_a_rank_that_fails_first_is_named_by_all(data, tmp_path):
    out = tmp_path / "run"
    assert ranked.train(2, out, *SETTINGS, before=bad_data) == [3, 3]
    summary = json.loads((out / "summary.json").read_text())
    assert summary == {
        "status": "failed",
        "exit": 3,
        "rank": 1,
        "what": "image 7 is damaged",
        "fix": "convert it again",
    }
    assert "image 7 is damaged" in ranked.message(out, 1)
    assert "rank 1 failed first (exit 3): image 7 is damaged" in ranked.message(out, 0)
    assert "Traceback" not in ranked.message(out, 0)


def bad_start(rank):
    if rank == 1:
        from fastssl.engine import launch

        launch.resume_from = lambda *arguments: raise_bad_data()


def test_a_rank_that_cannot_start_leaves_the_run_as_it_is(data, tmp_path):
    out = tmp_path / "run"
    assert ranked.train(2, out, *SETTINGS, "steps=2", before=stop_rank_1_early) == [143, 143]
    assert ranked.train(2, out, *SETTINGS, "steps=2", resume=True, before=bad_start) == [3, 3]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "interrupted" and "exit" not in summary
    assert "rank 1: exit 3" in ranked.message(out, 1)


def stop_rank_1_early(rank):
    if rank == 1:
        runs.before_step(0, lambda: os.kill(os.getpid(), signal.SIGTERM))


def die(rank):
    if rank == 1:
        runs.before_step(2, lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_rank_that_is_killed_is_missed(data, tmp_path):
    out = tmp_path / "run"
    assert ranked.train(2, out, *SETTINGS, before=die) == [5, -9]
    assert "lost contact with another rank" in ranked.message(out, 0)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["exit"] == 5


def test_what_differs_between_ranks_is_named(data, tmp_path):
    out = tmp_path / "seeds"
    assert ranked.train(2, out, only={1: ["seed=5"]}) == [2, 2]
    for rank in range(2):
        assert "rank 1 has another configuration" in ranked.message(out, rank)
        assert "'seed': 5 instead of 'seed': 0" in ranked.message(out, rank)
    out = tmp_path / "stores"
    make_store(tmp_path / "a", formats=("dali",))
    make_store(tmp_path / "b", count=100, formats=("dali",))
    common = ["data=own", "labels=all"]
    stores = {rank: [*common, f"store={tmp_path / name}"] for rank, name in enumerate("ab")}
    assert ranked.train(2, out, only=stores) == [2, 2]
    assert "rank 1 has another store than rank 0" in ranked.message(out, 1)


def test_a_batch_that_does_not_divide_is_refused(data, tmp_path):
    assert ranked.train(2, tmp_path / "run", "batch=11") == [2, 2]
    assert "batch 11 does not divide by 2 ranks" in ranked.message(tmp_path / "run", 0)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_batch_must_divide_by_the_ranks_and_their_parts(tmp_path):
    store = make_store(tmp_path / "a", formats=("dali",))
    resolved = load("digits", [*runs.TINY, "batch=10", "accumulate=2", "labels=all"])
    make_data(resolved, store, 1)
    with pytest.raises(ConfigError, match="10 does not divide by 2 ranks of 2 parts") as error:
        make_data(resolved, store, 2)
    assert "type batch=8" in error.value.fix


# In processes of their own: what a test process has imported already may hide a leak.
LEAVE = """
import sys
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from fastssl.distributed.process_group import joined

def gloo_threads():
    names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]

def work(group):
    model = DistributedDataParallel(torch.nn.Linear(3, 1), static_graph=True)
    model(torch.ones(2, 3)).sum().backward()
    assert group.ranks.max(group.ranks.rank) == 1 and gloo_threads()
    if sys.argv[1] == "fails":
        raise ValueError("whose traceback holds the model")

kept = None
try:
    with joined() as group:
        work(group)
except ValueError as error:
    kept = error
assert not gloo_threads(), gloo_threads()
"""


@pytest.mark.parametrize("ends", ["returns", "fails"])
def test_no_thread_of_a_process_group_outlives_it(tmp_path, ends):
    # Such a thread would abort the process if it ran while the interpreter shuts down.
    script = tmp_path / "leave.py"
    script.write_text(LEAVE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(script), ends],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def collectives(rank, folder):
    """Check on two ranks what needs two; a failed assertion is the process's exit code."""
    group = join()
    ranks = group.ranks
    assert ranks == Ranks(rank, 2)
    own = torch.arange(3.0) + 10 * rank
    assert ranks.gather(own).tolist() == [0, 1, 2, 10, 11, 12]
    assert ranks.take(torch.arange(4)).tolist() == [[0, 1], [2, 3]][rank]
    assert ranks.mean(own).tolist() == [5, 6, 7]
    assert ranks.max(4 * rank) == 4
    share = np.array_split(np.arange(7), 2)[rank]  # as an evaluation is divided
    assert ranks.gather_uneven(torch.from_numpy(share)).tolist() == list(range(7))
    empty = torch.arange(5) if rank else torch.arange(0)
    assert ranks.gather_uneven(empty).tolist() == list(range(5))
    value = torch.tensor([1.0 + rank], requires_grad=True)
    ranks.mean_with_grad(value).square().sum().backward()
    assert value.grad.tolist() == [3.0]  # 2 · mean, and the mean is 1.5
    same_batchnorm(rank)
    group.leave()


def same_batchnorm(rank):
    """Compare our BatchNorm over two ranks with torch's on the whole batch."""
    torch.manual_seed(0)
    images = torch.randn(8, 5, 3, 3, dtype=torch.float64)
    weights = torch.randn(8, 5, 3, 3, dtype=torch.float64)
    plain = nn.BatchNorm2d(5, momentum=0.3).double()
    nn.init.uniform_(plain.weight)
    whole, part = (nn.Sequential(plain.__class__(5, momentum=0.3).double()) for _ in range(2))
    for model in (whole, part):
        model[0].load_state_dict(plain.state_dict())
    sync_batchnorm.convert(part)
    x = images.clone().requires_grad_()
    mine = images[4 * rank : 4 * rank + 4].clone().requires_grad_()
    (whole(x) * weights).sum().backward()
    (part(mine) * weights[4 * rank : 4 * rank + 4]).sum().backward()
    torch.testing.assert_close(mine.grad, x.grad[4 * rank : 4 * rank + 4])
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(dict(part.named_buffers())[name], buffer)
    total = Ranks(rank, 2).mean(part[0].weight.grad) * 2
    torch.testing.assert_close(total, whole[0].weight.grad)


def test_collectives_and_batchnorm_over_two_ranks(tmp_path):
    assert ranked.wait(ranked.start(2, collectives, str(tmp_path))) == [0, 0]


def accumulated(rank):
    """Compare gradients and weights of two ranks with one process; count DDP's reductions."""
    with joined() as group:
        resolved = load("digits", [*runs.TINY, "accumulate=2", "algorithm=fixmatch", *TRUSTING])
        cpu = torch.device("cpu")
        info = DatasetInfo(10, 80, torch.full((10,), 0.1), cpu)
        both, alone = (
            make_learner(
                resolved,
                devices.Device(cpu, "fp32", 1, 1),
                ranks,
                build_model(resolved, 10, devices.Device(cpu, "fp32", 1, 1)).double(),
                info,
                torch.zeros(80, dtype=torch.int16),
            )
            for ranks in (group.ranks, Ranks())
        )
        reductions = []
        both.student.register_comm_hook(
            None, lambda _, bucket: reductions.append(step) or allreduce_hook(None, bucket)
        )
        for step in range(5):
            whole = to_double(make_batch(8, 8, 80, step, views=("weak", "strong")))
            train_step(both, share(whole, rank), step)
            train_step(alone, by_parts(whole), step)
            for (name, mine), other in zip(
                both.model.named_parameters(), alone.model.parameters(), strict=True
            ):
                assert (mine.grad is None) == (other.grad is None), name
                if mine.grad is not None:
                    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-6, atol=1e-9)
                torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)
        buckets = reductions.count(4)
        assert [reductions.count(step) for step in range(5)] == [2 * buckets] + [buckets] * 4
        del both


def share(batch, rank):
    """Return one of two ranks' slices of a global batch."""
    cut = accumulate.cut(batch, rank, 2, 1)
    return replace(cut, key=batch.key, global_positions=batch.global_positions)


def by_parts(batch):
    """Order a batch so that its halves hold the images that the parts hold on two ranks."""

    def ordered(tensor):
        return tensor.view(2, 2, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)

    return replace(
        batch,
        images=ordered(batch.images),
        labels=ordered(batch.labels),
        views={name: ordered(view) for name, view in batch.views.items()},
        position=ordered(batch.position),
        global_positions=ordered(batch.global_positions),
    )


def test_accumulated_gradients_of_two_ranks_equal_one_process_and_reduce_once():
    assert ranked.wait(ranked.start(2, accumulated)) == [0, 0]


def test_no_filter_of_warnings_outlives_the_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = list(warnings.filters)
    with joined():
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn("Grad strides do not match bucket view strides.", stacklevel=1)
        assert not seen, "DDP's warning is expected"
        wrap(nn.Linear(2, 2), torch.device("cpu"), Ranks())
    assert warnings.filters == before


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = join()
    assert group.ranks == Ranks(0, 1)
    group.agree({"configuration": "a"})
    group.leave()
    message = []
    with pytest.raises(DataError), group.contact(lambda *failure: message.append(failure)):
        raise_bad_data()
    assert message[0][0] == 0 and message[0][1].exit_code == 3
    with pytest.raises(KeyError), group.contact(lambda *failure: message.append(failure)):
        raise KeyError("a bug")
    assert message[1][1].exit_code == 1 and "KeyError" in message[1][1].what


def rehearse(rank):
    """Estimate a run on two ranks of which one has no patience."""
    dry_run.PATIENCE = 0.0 if rank else 600.0
    assert launch.run_training(load("digits", [*runs.TINY]), None, False, dry_run=True) == 0


def test_ranks_end_a_dry_run_after_the_same_step(data):
    assert ranked.wait(ranked.start(2, rehearse)) == [0, 0]


def test_ranks_that_never_meet_are_reported(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ResourceError, match="did not find each other"):
        join()


def test_a_difference_is_short_enough_to_read():
    assert difference("'a': 1, 'b': 2", "'a': 1, 'b': 3") == "'b': 3 instead of 'b': 2"
    assert len(difference("x" * 500, "y" * 500)) < 200
