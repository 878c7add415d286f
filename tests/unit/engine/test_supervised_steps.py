"""First steps that learn from labels alone, in one process, over ranks and after a resume."""

from functools import partial

import pytest

from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks
from fastssl.distributed.process_group import Group
from fastssl.engine import devices, dry_run
from fastssl.engine.build import assemble
from fastssl.engine.loop import train_step
from fastssl.errors import ConfigError
from tests import ranked, runs
from tests.runs import TINY

FIRST = ["supervised_steps=2", "steps=4", "log_every=1", "checkpoint_every=1"]
RECIPE = [
    "algorithm=flexmatch", "algo.forward=skip", "algo.pseudo_labels=teacher",
    "algo.alignment=true", "algo.range=scale", "algo.floor=0.2", "labeled_view=strong",
]  # fmt: skip


def losses(*words):
    """Take four steps; return what they gave."""
    resolved = load("digits", [*TINY, *FIRST, *words])
    learner, data = assemble(resolved, devices.choose(resolved.config))
    try:
        outs = []
        for step in range(4):
            outs.append(train_step(learner, data.loader.batch(step), step))
        return outs
    finally:
        data.close()


@pytest.mark.parametrize("words", [["algorithm=flexmatch"], ["algorithm=uda", "accumulate=2"]])
def test_the_first_steps_are_those_of_supervised_and_the_rest_are_not(data, words):
    outs = losses(*words)
    alone = losses(*words, "algorithm=supervised")
    same = [float(one.loss) == float(other.loss) for one, other in zip(outs, alone, strict=True)]
    assert same == [True, True, False, False]
    assert [one.trusted is not None for one in outs] == [False, False, True, True]
    later = losses(*words, "supervised_steps=0")
    assert [one.trusted is not None for one in later] == [True] * 4


def train(out, *words, **given):
    return runs.train(out, *FIRST, *RECIPE, *words, **given)


@pytest.mark.parametrize(
    "killed_at",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)],
)
def test_a_resumed_run_with_all_options_is_the_uninterrupted_one(data, tmp_path, killed_at):
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert train(whole) == 0
    assert train(part, kill_at=killed_at) < 0
    assert train(part, resume=True) == 0
    runs.assert_same_run(whole, part)
    lines = [line for line in runs.metrics(whole) if "loss" in line and "trusted" in line]
    assert [line["step"] for line in lines] == [3, 4]
    assert runs.last(whole)["trip"]["images"] == 4 * 10 + 2 * 20


def test_a_dry_run_measures_the_steps_after_the_first(data, monkeypatch):
    seen, real = [], dry_run.train_step

    def note(learner, batch, step):
        seen.append((step, len(batch.position)))
        return real(learner, batch, step)

    monkeypatch.setattr(dry_run, "train_step", note)
    resolved = load("digits", [*TINY, *FIRST])
    dry_run.measure(resolved, Group(Ranks()))
    assert seen == [(2, 20), (3, 20)]


def test_two_ranks_learn_as_one(data, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["algorithm=pseudolabel", *FIRST]
    assert runs.train(one, *words, before=partial(ranked.in_double, 0)) == 0
    assert ranked.train(2, two, *words, before=ranked.in_double) == [0, 0]
    wanted, found = ([line["loss"] for line in runs.metrics(p) if "lr" in line] for p in (one, two))
    assert len(found) == 4 and found == pytest.approx(wanted, rel=1e-6)
    assert runs.last(two)["trip"]["images"] == runs.last(one)["trip"]["images"]


def test_two_ranks_train_with_all_options(data, tmp_path):
    assert ranked.train(2, tmp_path / "two", *FIRST, *RECIPE) == [0, 0]
    assert runs.last(tmp_path / "two")["trip"]["images"] == 4 * 10 + 2 * 20


def test_heads_without_a_gradient_are_refused_over_ranks(data):
    from fastssl.engine.build_data import find_store, make_data

    resolved = load("digits", [*TINY, *FIRST, "algorithm=remixmatch"])
    store = find_store(resolved)
    make_data(resolved, store, 1)
    with pytest.raises(ConfigError, match="2 over 2 ranks, and the extra heads") as caught:
        make_data(resolved, store, 2)
    assert caught.value.fix == "type supervised_steps=0, or start one process"


def test_a_run_of_supervised_steps_alone_is_refused():
    with pytest.raises(ConfigError, match="expected less than steps"):
        load("digits", [*TINY, "supervised_steps=8"])


def test_labeled_images_get_the_view_that_is_set(data):
    weak, strong, named = losses(), losses("labeled_view=strong"), losses("labeled_view=weak")
    assert [float(out.loss) for out in weak] == [float(out.loss) for out in named]
    assert all(a.loss != b.loss for a, b in zip(weak, strong, strict=True))
