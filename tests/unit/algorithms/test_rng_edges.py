"""The random numbers of a step against Python's own integers and floats."""

import math

import pytest
import torch

from fastssl.algorithms.common import rng

KEY = (2**62 + 12345, -(2**61) - 678)
MASK = 2**64 - 1


def mixed(value):
    """Return the finalizer of SplitMix64."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def bits(stream, position):
    start = mixed(KEY[0] + stream * 0x9E3779B97F4A7C15) ^ (KEY[1] & MASK)
    return mixed(mixed(start + position) + mixed(KEY[1] + stream))


def uniform(stream, position):
    return ((bits(stream, position) >> 41) + 0.5) / 2**23


def normal(stream, position):
    angle = (bits(stream, position) & (2**23 - 1)) / 2**23 * 2 * math.pi
    return math.sqrt(-2 * math.log(uniform(stream, position))) * math.cos(angle)


def gamma(stream, position, shape):
    """Marsaglia and Tsang: draw until one is accepted; below 1 by the draw of shape + 1."""
    d = (shape + 1 if shape < 1 else shape) - 1 / 3
    for place in range(16 * position, 16 * position + 16):
        x, u = normal(3 * stream, place), uniform(3 * stream + 1, place)
        v = (1 + x / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(u) < x * x / 2 + d - d * v + d * math.log(v):
            break
    power = uniform(3 * stream + 2, position) ** (1 / shape) if shape < 1 else 1
    return d * v * power


def drawn(function, *arguments, **options):
    return function(torch.tensor(KEY), *arguments, **options).tolist()


@pytest.mark.parametrize("stream", [0, 1, 5, 100])
def test_bits_numbers_and_choices_are_those_of_the_formula(stream):
    places = range(40)
    unsigned = [value & MASK for value in drawn(rng.bits, stream, 40)]
    assert unsigned == [bits(stream, k) for k in places]
    assert drawn(rng.uniform, stream, 40) == [uniform(stream, k) for k in places]
    assert drawn(rng.choice, stream, 40, 7) == [(bits(stream, k) >> 32) % 7 for k in places]
    wanted = [normal(stream, k) for k in places]
    assert drawn(rng.normal, stream, 40) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    for function in (rng.bits, rng.uniform, rng.normal):
        assert drawn(function, stream, 10, offset=30) == drawn(function, stream, 40)[30:]
    assert drawn(rng.choice, stream, 10, 7, offset=30) == drawn(rng.choice, stream, 40, 7)[30:]


@pytest.mark.parametrize("shape", [0.5, 0.75, 1.0, 4.0])
@pytest.mark.parametrize("stream", [0, 1, 2])
def test_gamma_and_beta_are_those_of_the_formula(stream, shape):
    wanted = [gamma(stream, k, shape) for k in range(200)]
    assert drawn(rng.gamma, stream, 200, shape) == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    pairs = [(gamma(2 * stream, k, shape), gamma(2 * stream + 1, k, shape)) for k in range(200)]
    wanted = [one / (one + other) for one, other in pairs]
    assert drawn(rng.beta, stream, 200, shape) == pytest.approx(wanted, rel=1e-3, abs=1e-6)


def test_a_draw_of_which_every_try_is_outside_is_the_middle(monkeypatch):
    monkeypatch.setattr(rng, "normal", lambda key, stream, count: torch.full((count,), -100.0))
    assert drawn(rng.gamma, 0, 3, 4.0) == pytest.approx([4 - 1 / 3] * 3)


def test_a_permutation_sorts_the_bits_as_signed_numbers():
    signed = [
        value - 2**64 if value >= 2**63 else value for value in (bits(3, k) for k in range(50))
    ]
    assert drawn(rng.permutation, 3, 50) == sorted(range(50), key=signed.__getitem__)
