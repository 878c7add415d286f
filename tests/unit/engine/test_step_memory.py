"""A step that could never fit is refused before it is taken, and asking changes nothing."""

import copy
import json

import pytest
import torch

from fastssl.algorithms import ALGORITHMS
from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks
from fastssl.engine import devices, launch, step_memory
from fastssl.engine.build import assemble
from fastssl.engine.loop import train_step
from fastssl.errors import ResourceError
from pipelines import memory
from tests import runs, steps

FACTOR = 2  # the estimate and the memory that a step really takes differ by less


def made(*words):
    resolved = load("digits", [*runs.TINY, *words])
    return assemble(resolved, devices.choose(resolved.config))


@pytest.fixture
def run(data):
    found = made()
    yield found
    found.data.loader.close()


def largest_allocation(run, file):
    """Take a step; return the most bytes that its tensors held at one time.

    The profiler counts what torch allocates. The peak of the process would also count what the C
    library keeps of freed memory, which depends on all that ran before.
    """
    from torch.profiler import ProfilerActivity, profile

    batch = run.data.loader.batch(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train_step(run.learner, batch, 0)
    profiler.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    changes = [event["args"] for event in events if event["name"] == "[memory]"]
    changes.sort(key=lambda change: change["Ev Idx"])
    before = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    return max(change["Total Allocated"] for change in changes) - before


@pytest.mark.parametrize("words", [[], ["accumulate=2"], ["precision=bf16"]], ids=str)
def test_the_estimate_is_near_what_a_step_takes(data, tmp_path, words):
    run = made("model=wrn-16-2", "batch=64", "ratio=5", "labels=100", *words)
    need = step_memory.per_image(run.learner, run.data.size) * step_memory.images(run.learner)
    took = largest_allocation(run, tmp_path / "trace.json")
    run.data.loader.close()
    assert 1 / FACTOR < need / took < FACTOR, f"{need / 1e6:.0f} MB against {took / 1e6:.0f} MB"


def test_asking_leaves_the_run_as_it_was(run):
    run.learner.model.train()
    run.learner.model.classifier.eval()  # a mode of its own is kept as well
    modes = [module.training for module in run.learner.model.modules()]
    parts = [run.learner.model.state_dict(), run.learner.ema.model.state_dict(), run.learner.state]
    before, drawn = copy.deepcopy(parts), torch.get_rng_state()
    assert step_memory.per_image(run.learner, run.data.size) > 0
    runs.assert_same(before, parts, "")
    assert torch.equal(drawn, torch.get_rng_state())
    assert modes == [module.training for module in run.learner.model.modules()]
    assert all(p.grad is None for p in run.learner.model.parameters())


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_no_algorithm_keeps_less_than_half_of_what_is_counted(run, name):
    algorithm, nets = ALGORITHMS[name], steps.make_nets()
    run.learner.model = nets.student
    count = steps.LABELED + steps.UNLABELED * len(algorithm.views)
    storages = {p.untyped_storage().data_ptr(): None for p in nets.student.parameters()}

    def pack(tensor):
        storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    config, ranks = algorithm.config(), Ranks()
    state = algorithm.init_state(config, steps.facts())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        algorithm.step(nets, steps.make_batch(algorithm), state, config, torch.tensor(0.5), ranks)
    kept = sum(t.untyped_storage().nbytes() for t in storages.values() if t is not None)
    assert step_memory.per_image(run.learner, (steps.SIZE, steps.SIZE)) * count / 2 <= kept


def test_a_step_that_can_never_fit_is_refused_with_what_to_type(run, monkeypatch):
    need = (
        step_memory.per_image(run.learner, run.data.size) * 50
    )  # 10 labelled images, and 2 views of 20 unlabelled
    monkeypatch.setattr(step_memory, "total", lambda: need // 2)
    step_memory.check(run.learner, run.data.size)
    monkeypatch.setattr(step_memory, "total", lambda: need // 2 - 1)
    with pytest.raises(ResourceError) as caught:
        step_memory.check(run.learner, run.data.size)
    assert caught.value.exit_code == 5
    assert "batch=10 and ratio=2" in caught.value.what and "0.0 GB" in caught.value.what
    assert "accumulate=5" in caught.value.fix, "3 parts would do, but 10 images have none"
    monkeypatch.setattr(step_memory, "total", lambda: 1)
    with pytest.raises(ResourceError) as caught:
        step_memory.check(run.learner, run.data.size)
    assert "accumulate" not in caught.value.fix and "--size" in caught.value.fix


def test_the_parts_that_are_taken_already_count(data, monkeypatch):
    run = made("accumulate=2")
    need = step_memory.per_image(run.learner, run.data.size) * 50
    run.data.loader.close()
    monkeypatch.setattr(step_memory, "total", lambda: need // 4)
    step_memory.check(run.learner, run.data.size)
    monkeypatch.setattr(step_memory, "total", lambda: need // 5)
    with pytest.raises(ResourceError, match="needs about"):
        step_memory.check(run.learner, run.data.size)


def test_a_dry_run_is_refused_too_and_no_step_is_taken(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step_memory, "total", lambda: 1)
    for module in ("loop", "dry_run"):
        monkeypatch.setattr(
            f"fastssl.engine.{module}.train_step", lambda *_: pytest.fail("a step was taken")
        )
    resolved = load("digits", [*runs.TINY, "compile=auto"])
    with pytest.raises(ResourceError, match="needs about"):
        launch.run_training(resolved, None, False, dry_run=True)
    with pytest.raises(ResourceError, match="needs about"):
        launch.run_training(resolved, tmp_path / "run", False, dry_run=False)
    monkeypatch.undo()
    assert launch.run_training(resolved, tmp_path / "run", False, dry_run=False) == 0, (
        "nothing is in its way"
    )


def test_the_limit_of_a_container_counts_where_it_is_lower(monkeypatch):
    import psutil

    swap = psutil.swap_memory().total
    whole = psutil.virtual_memory().total + swap
    for limit, wanted in ((1_000_000, 1_000_000 + swap), (2**63, whole)):
        monkeypatch.setattr(memory, "limiting_groups", lambda limit=limit: [memory.Group(limit, 0)])
        assert step_memory.total() == wanted
