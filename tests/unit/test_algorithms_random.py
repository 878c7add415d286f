"""Randomness of a step: a function of the key, with the distributions it claims."""

import pytest
import torch
from scipy import stats

from fastssl.algorithms import random

KEY = torch.tensor([12345, 67890])
MANY = 40_000


def plausible(sample, distribution):
    return stats.kstest(sample.double().numpy(), distribution).pvalue > 1e-3


def test_equal_keys_give_equal_numbers_and_others_do_not():
    one = random.bits(KEY, 0, 1000)
    assert torch.equal(one, random.bits(KEY.clone(), 0, 1000))
    for other in (
        random.bits(KEY + torch.tensor([1, 0]), 0, 1000),
        random.bits(KEY + torch.tensor([0, 1]), 0, 1000),
        random.bits(KEY, 1, 1000),
    ):
        assert not (one == other).any()
    assert len(set(one.tolist())) == 1000


def test_a_rank_draws_what_one_process_would():
    whole = random.normal(KEY, 3, 100)
    assert torch.equal(whole[40:], random.normal(KEY, 3, 60, offset=40))


def test_global_generators_are_left_alone():
    before = torch.get_rng_state()
    random.beta(KEY, 0, 10, 0.5)
    random.permutation(KEY, 0, 10)
    assert torch.equal(before, torch.get_rng_state())


def test_uniform():
    drawn = random.uniform(KEY, 0, MANY)
    assert drawn.min() > 0 and drawn.max() < 1
    assert plausible(drawn, "uniform")


def test_normal():
    drawn = random.normal(KEY, 0, MANY)
    assert plausible(drawn, "norm") and drawn.isfinite().all()
    assert abs(torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1]) < 0.02


@pytest.mark.parametrize("shape", [0.5, 0.75, 1.0, 4.0])
def test_beta(shape):
    drawn = random.beta(KEY, 1, MANY // 4, shape)
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert plausible(drawn, stats.beta(shape, shape).cdf)


def test_permutation():
    first, other = random.permutation(KEY, 0, 500), random.permutation(KEY + 1, 0, 500)
    assert sorted(first.tolist()) == list(range(500)) and not torch.equal(first, other)
    starts = [random.permutation(KEY + i, 0, 4)[0].item() for i in range(400)]
    assert min(starts.count(value) for value in range(4)) > 60


def test_choice():
    drawn = random.choice(KEY, 0, MANY, 4)
    counts = torch.bincount(drawn, minlength=4)
    assert len(counts) == 4 and (counts - MANY / 4).abs().max() < 500
