"""The benchmark of `algo.forward=skip`: exact shares, FlexMatch's loss, nothing cut."""

import json

import pytest
import torch

from fastssl.algorithms import ALGORITHMS
from fastssl.distributed.collectives import Ranks
from tests.steps import UNLABELED, facts, gradients, make_batch, make_nets
from tools import readme_tables
from tools.bench import skip
from tools.bench.subjects import SkipOptions

FLEXMATCH = ALGORITHMS["flexmatch"]
TINY = ("model=fast-8", "batch=5", "ratio=14", "threads=1")  # 70 unlabeled images


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_record_of_skip_has_all_ways_at_all_shares(monkeypatch, tmp_path):
    # The slots of the configuration are switched off: else 8 of the trusted images were left.
    options = SkipOptions(overrides=(*TINY, "algo.slots=8"), size=9, steps=1, repetitions=1)
    record = skip.run(options)
    rows = {row["name"]: row for row in record["results"]}
    # 14, 35 and 63 of 70 images are trusted; skip passes 32, 64 and 64 strong views.
    expected = {}
    for share, trusted, passed in ((20, 14, 32), (50, 35, 64), (90, 63, 64)):
        expected[f"together at {share} %"] = (trusted, 5 + 70 + 70, "student")
        expected[f"split at {share} %"] = (trusted, 5 + 70, "teacher")
        expected[f"skip at {share} %"] = (trusted, 5 + passed, "teacher")
    found = {n: (r["trusted"], r["with_gradient"], r["pseudo_labels"]) for n, r in rows.items()}
    assert found == expected
    assert len(record["ratio"]) == 6
    for name, ratio in record["ratio"].items():
        ours = rows[f"skip at {name.split(' at ')[1]}"]["rate"]
        assert ratio == pytest.approx(rows[name]["rate"] / ours, rel=0.01, abs=0.01)
    settings = record["settings"]
    assert (settings["model"], settings["batch"], settings["ratio"]) == ("fast-8", 5, 14)
    assert (settings["optimizer"], settings["precision"]) == ("muon", "bf16")
    (tmp_path / "skip-fast-8.json").write_text(json.dumps(record))
    monkeypatch.setattr(readme_tables, "RESULTS", tmp_path)
    rows = readme_tables.skipping().splitlines()
    assert len(rows) == 2 + 3 and rows[2].startswith("| `fast-8` | 20 % | ")


@pytest.mark.parametrize(("share", "trusted"), [(20, 90), (50, 224), (90, 403), (100, 448)])
def test_the_wanted_share_of_a_batch_is_trusted(share, trusted):
    vector = skip.exactly_trusted(share, 448)
    assert vector.sum() == trusted and ((vector == 0) | (vector == 1)).all()
    halves = vector.view(2, -1).mean(dim=1) - share / 100
    assert halves.abs().max() < 0.05, "they are spread over the batch"


@pytest.mark.parametrize(
    "settings",
    [
        {"floor": 0.7},
        {"floor": 0.7, "forward": "split", "unlabeled_weight": 2},
        {"floor": 0.6, "forward": "skip", "pseudo_labels": "teacher", "alignment": True},
    ],
)
def test_the_step_is_that_of_flexmatch_with_a_given_decision(settings):
    config = FLEXMATCH.config(**settings)
    batch = make_batch(FLEXMATCH, 1, torch.float64)

    def take(step):
        nets, state = (
            make_nets(torch.float64),
            FLEXMATCH.init_state(config, facts(dtype=torch.float64)),
        )
        out = step(nets, batch, state, config, torch.tensor(0.5), Ranks())
        out.loss.backward()
        return out, state, gradients(nets.student)

    theirs, state, by_them = take(FLEXMATCH.step)
    assert 0 < theirs.trusted.sum() < UNLABELED
    ours, own_state, by_us = take(lambda *given: skip.flexmatch_step(theirs.trusted, *given))
    assert torch.equal(ours.loss, theirs.loss)
    assert torch.equal(ours.pseudo_label, theirs.pseudo_label)
    assert all(torch.equal(own_state[key], value) for key, value in state.items())
    assert all(torch.equal(by_us[key], value) for key, value in by_them.items())
    others, *_ = take(lambda *given: skip.flexmatch_step(1 - theirs.trusted, *given))
    assert torch.equal(others.trusted, 1 - theirs.trusted) and others.loss != ours.loss
