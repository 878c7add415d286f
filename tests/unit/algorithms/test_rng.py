"""Randomness of a step: a function of the key, with the distributions it claims."""

import pytest
import torch
from scipy import stats

from fastssl.algorithms.common import rng
from tests.installed import needs_compiler

KEY = torch.tensor([12345, 67890])
MANY = 40_000


def plausible(draw, distribution):
    """Test samples of many keys, and that their p-values are spread as chance would have it."""
    keys = [KEY + torch.tensor([i, 1000 * i * i]) for i in range(40)]
    values = [stats.kstest(draw(key).double().numpy(), distribution).pvalue for key in keys]
    return stats.kstest(values, "uniform").pvalue > 1e-3


def test_equal_keys_give_equal_numbers_and_others_do_not():
    one = rng.bits(KEY, 0, 1000)
    assert torch.equal(one, rng.bits(KEY.clone(), 0, 1000))
    for other in (
        rng.bits(KEY + torch.tensor([1, 0]), 0, 1000),
        rng.bits(KEY + torch.tensor([0, 1]), 0, 1000),
        rng.bits(KEY, 1, 1000),
    ):
        assert not (one == other).any()
    assert len(set(one.tolist())) == 1000


def test_a_rank_draws_what_one_process_would():
    whole = rng.normal(KEY, 3, 100)
    assert torch.equal(whole[40:], rng.normal(KEY, 3, 60, offset=40))


def test_global_generators_are_left_alone():
    before = torch.get_rng_state()
    rng.beta(KEY, 0, 10, 0.5)
    rng.permutation(KEY, 0, 10)
    assert torch.equal(before, torch.get_rng_state())


def test_uniform():
    drawn = rng.uniform(KEY, 0, MANY)
    assert drawn.min() > 0 and drawn.max() < 1
    assert plausible(lambda key: rng.uniform(key, 0, 2000), "uniform")


def test_normal():
    drawn = rng.normal(KEY, 0, MANY)
    assert drawn.isfinite().all()
    assert plausible(lambda key: rng.normal(key, 0, 2000), "norm")
    assert abs(torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1]) < 0.02


@pytest.mark.parametrize("shape", [0.5, 0.75, 1.0, 4.0])
def test_beta(shape):
    drawn = rng.beta(KEY, 1, MANY // 4, shape)
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert plausible(lambda key: rng.beta(key, 1, 2000, shape), stats.beta(shape, shape).cdf)


def test_permutation():
    first, other = rng.permutation(KEY, 0, 500), rng.permutation(KEY + 1, 0, 500)
    assert sorted(first.tolist()) == list(range(500)) and not torch.equal(first, other)
    starts = [rng.permutation(KEY + i, 0, 4)[0].item() for i in range(400)]
    assert min(starts.count(value) for value in range(4)) > 60


def test_choice():
    drawn = rng.choice(KEY, 0, MANY, 4)
    counts = torch.bincount(drawn, minlength=4)
    assert len(counts) == 4 and (counts - MANY / 4).abs().max() < 500


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of the compiler's own making
def test_the_compiler_draws_the_same_bits():
    torch._dynamo.reset()

    def draw(key):
        return rng.bits(key, 7, 50, offset=3), rng.permutation(key, 0, 50)

    compiled = torch.compile(draw, fullgraph=True)
    for i in range(3):
        for got, wanted in zip(compiled(KEY + i), draw(KEY + i), strict=True):
            assert torch.equal(got, wanted)
