"""What every algorithm keeps to; a new file is tested by being there."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fastssl.algorithms
from fastssl.algorithms import ALGORITHMS, Nets
from fastssl.cli import listing
from fastssl.distributed.collectives import Ranks
from pipelines.loader.batch import Batch
from tests.installed import needs_compiler
from tests.steps import (
    LABELED,
    UNLABELED,
    facts,
    gradients,
    make_batch,
    make_nets,
    snapshot,
    tiny_nets,
)
from tests.unit.algorithms import oracles

FOLDER = Path(fastssl.algorithms.__file__).parent
EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))
HALF = torch.tensor(0.5)


def take(
    name, nets, *, step=None, seed=0, state=None, progress=HALF, unlabeled=UNLABELED, **settings
):
    """Take one step and go backward; give what it returned."""
    algorithm = ALGORITHMS[name]
    config = algorithm.config(**settings)
    state = algorithm.init_state(config, facts()) if state is None else state
    batch = make_batch(algorithm, seed, unlabeled=unlabeled)
    out = (step or algorithm.step)(nets, batch, state, config, progress, Ranks())
    nets.student.zero_grad()
    out.loss.backward()
    return out


def test_listing_algorithms_needs_no_torch():
    code = "import sys, fastssl.algorithms; assert len(fastssl.algorithms.ALGORITHMS) >= 15;"
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


@EVERY
def test_a_file_is_named_and_described(name):
    algorithm = ALGORITHMS[name]
    file = FOLDER / f"{name}.py"
    text = file.read_text()
    assert len(text.splitlines()) <= 120
    assert algorithm.summary.endswith(".") and algorithm.forwards[0].isdigit()
    assert set(algorithm.views.values()) <= {"weak", "strong"}
    doc = sys.modules[algorithm.step.__module__].__doc__
    assert not doc.split("\n\n")[1].startswith(("Paper", "Loss")), "the idea takes two sentences"
    if "supervised" not in name:
        assert "Paper: https://" in doc and "\n\n    " in doc, "cite the paper, give the equations"
        assert "TorchSSL" in doc or "USB" in doc, "say where published code departs"
    for key, field in algorithm.config.model_fields.items():
        assert field.description, f"{name}.{key} says nothing of itself"
    assert algorithm.config.model_config["extra"] == "forbid"
    assert algorithm.config.model_config["frozen"]


# those of a mixed batch grow with the ratio, which is 2 here
CHUNKED = {"mixmatch": 2 + 1 + 2 * 2, "remixmatch": 1 + 1 + 3 * 2 + 1 + 1}


@EVERY
def test_the_list_names_the_views_and_counts_the_forward_passes(name):
    (row,) = [row for row in listing.rows("algorithms") if row["name"] == name]
    assert row["what"].endswith(".") and ". " not in row["what"], "one sentence"
    assert row["views"].split(" + ") == (list(ALGORITHMS[name].views.values()) or ["-"])
    nets, passes = make_nets(), []
    for net in (nets.student, nets.teacher):
        net.register_forward_hook(lambda *_: passes.append(1))
    take(name, nets)
    listed = row["forward passes"]
    assert len(passes) == (CHUNKED[name] if "chunks" in listed else int(listed.split(":")[0]))


@EVERY
def test_a_step_moves_the_weights_and_keeps_no_graph(name):
    nets = make_nets()
    before = snapshot(nets)
    out = take(name, nets)
    torch.optim.SGD(nets.student.parameters(), 0.1).step()
    student, teacher = snapshot(nets)
    assert any((before[0][k] != v).any() for k, v in student.items() if "weight" in k)
    assert all(torch.equal(before[1][k], v) for k, v in teacher.items())
    assert all(p.grad is None for p in nets.teacher.parameters())
    values = [*out.metrics.values(), *out.tables.values(), out.pseudo_label, out.trusted]
    assert not any(value.requires_grad for value in values if value is not None)
    assert all(value.ndim == 0 for value in out.metrics.values())
    assert "loss/labeled" in out.metrics
    if out.pseudo_label is not None:
        assert out.pseudo_label.shape == out.trusted.shape and out.pseudo_label.dtype == torch.int64
        assert ((out.trusted >= 0) & (out.trusted <= 1)).all()


@EVERY
def test_a_step_leaves_gradients_to_the_loop(name):
    algorithm, nets = ALGORITHMS[name], make_nets()
    state = algorithm.init_state(algorithm.config(), facts())
    algorithm.step(nets, make_batch(algorithm), state, algorithm.config(), HALF, Ranks())
    assert all(p.grad is None for p in nets.student.parameters())


def test_the_teacher_answers_in_train_mode_whatever_its_mode():
    nets = make_nets()
    first = take("meanteacher", nets)
    nets = make_nets()
    nets.teacher.eval()
    again = take("meanteacher", nets)
    assert torch.equal(first.loss, again.loss)
    assert not nets.teacher.training and not any(m.training for m in nets.teacher.modules())


def train(name, nets, state, seeds, **settings):
    optimizer = torch.optim.SGD(nets.student.parameters(), 0.05)
    losses = []
    for seed in seeds:
        out = take(name, nets, seed=seed, state=state, progress=torch.tensor(seed / 4), **settings)
        optimizer.step()
        losses.append(out.loss.item())
    return losses


OPTIONS = {"alignment": True, "forward": "skip", "pseudo_labels": "teacher", "threshold": 0.7}


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in ALGORITHMS), ("fixmatch", OPTIONS), ("flexmatch", OPTIONS)],
    ids=lambda value: value if isinstance(value, str) else "options" if value else "",
)
def test_a_resumed_run_is_the_uninterrupted_run(name, settings):
    algorithm = ALGORITHMS[name]
    config = algorithm.config(**settings)
    nets, state = make_nets(), algorithm.init_state(config, facts())
    whole = train(name, nets, state, range(4), **settings)

    other, half = make_nets(), algorithm.init_state(config, facts())
    train(name, other, half, range(2), **settings)
    saved, saved_state = snapshot(other), copy.deepcopy(half)  # the checkpoint
    fresh = make_nets(seed=9)
    fresh.student.load_state_dict(saved[0])
    fresh.teacher.load_state_dict(saved[1])
    assert train(name, fresh, saved_state, range(2, 4), **settings) == whole[2:]
    assert state.keys() == saved_state.keys()
    assert all(torch.equal(state[key], saved_state[key]) for key in state)


@EVERY
def test_without_unlabeled_weights_the_labeled_term_is_left(name):
    algorithm = ALGORITHMS[name]
    weights = {key: 0.0 for key in algorithm.config.model_fields if key.endswith("_weight")}
    config = algorithm.config(**weights)
    nets = make_nets(torch.float64)
    twin = copy.deepcopy(nets.student)
    batch = make_batch(algorithm, dtype=torch.float64)
    state = algorithm.init_state(config, facts())
    out = algorithm.step(nets, batch, state, config, HALF, Ranks())
    out.loss.backward()
    torch.testing.assert_close(out.loss.detach(), out.metrics["loss/labeled"])
    getattr(oracles, name)(twin, nets.teacher, batch, {}, config, 0.5).backward()
    for key, value in gradients(nets.student).items():
        wanted = gradients(twin).get(key, torch.zeros_like(value))
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-8)


def compiled_equals_eager(name, backend, close, steps=2):
    """Take steps both ways, the second from the memory that the first left."""
    torch._dynamo.reset()
    step = torch.compile(ALGORITHMS[name].step, fullgraph=True, backend=backend)
    eager, traced = tiny_nets(), tiny_nets()
    config = ALGORITHMS[name].config()
    memories = [ALGORITHMS[name].init_state(config, facts()) for _ in range(2)]
    for seed in range(steps):
        progress = torch.tensor(0.2 + 0.1 * seed)
        same = {"seed": seed, "progress": progress, "unlabeled": LABELED}  # few chunks to trace
        one = take(name, eager, state=memories[0], **same)
        other = take(name, traced, step=step, state=memories[1], **same)
        torch.testing.assert_close(one.loss, other.loss, rtol=close, atol=close)
        theirs = gradients(traced.student)
        for key, value in gradients(eager.student).items():
            torch.testing.assert_close(
                value, theirs[key], rtol=0, atol=close * max(1, value.abs().max())
            )
        for key, value in memories[0].items():
            torch.testing.assert_close(value, memories[1][key], rtol=close, atol=close)
        for mine, other_buffer in zip(
            eager.student.buffers(), traced.student.buffers(), strict=True
        ):
            torch.testing.assert_close(mine, other_buffer, rtol=close, atol=close)


@EVERY
def test_a_step_is_one_graph(name):
    compiled_equals_eager(name, "aot_eager", 1e-5)


# VAT: the probe's gradient is a small difference, and rounding is the compiler's own
INDUCTOR = {"vat": 1e-3}


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of the compiler's own making
def test_flexmatch_compiles():
    compiled_equals_eager("flexmatch", "inductor", 1e-5)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "flexmatch"])
def test_a_step_compiles(name):
    compiled_equals_eager(name, "inductor", INDUCTOR.get(name, 1e-5))


@EVERY
def test_half_precision_stays_near(name):
    whole = take(name, make_nets())
    with torch.autocast("cpu", torch.bfloat16):
        half = take(name, make_nets())
    assert half.loss.dtype == torch.float32
    assert abs(half.loss.item() - whole.loss.item()) <= 0.02 * abs(whole.loss.item())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@EVERY
def test_a_step_never_waits_for_the_gpu(name):
    algorithm = ALGORITHMS[name]
    nets = Nets(*(net.cuda() for net in (make_nets().student, make_nets().teacher)))
    batch = make_batch(algorithm)
    there = Batch(
        batch.images.cuda(),
        batch.labels.cuda(),
        {view: images.cuda() for view, images in batch.views.items()},
        batch.position.cuda(),
        batch.global_positions.cuda(),
        batch.key.cuda(),
    )
    config = algorithm.config()
    state = algorithm.init_state(config, facts("cuda"))
    progress = HALF.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        algorithm.step(nets, there, state, config, progress, Ranks()).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
