"""Random numbers inside a step: a function of the step's key, on the device, without generators.

Numbers come from a counter-based hash (the finalizer of SplitMix64 over counter and key), in
integer operations whose results are the same on every device and when compiled. `stream`
separates the draws of one step; `offset` is the position of the first number, so that a rank
draws for its own images what a single process would have drawn for them.
"""

from __future__ import annotations

import math

from fastssl.algorithms.base import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB
_TRIES = 16  # of rejection sampling; the chance that all fail is below 1e-20


def _signed(value: int) -> int:
    """Wrap a Python integer into signed 64 bits, as tensors do."""
    return (value + 2**63) % 2**64 - 2**63


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros (a logical shift)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _FIRST
    value = (value ^ _shift(value, 27)) * _SECOND
    return value ^ _shift(value, 31)


def bits(key: Tensor, stream: int, count: int, offset: int = 0) -> Tensor:
    """Draw `count` integers of 64 random bits."""
    import torch

    # Never multiply the counter itself: torch.compile would fold a large factor into its index
    # arithmetic, which does not wrap around.
    counter = torch.arange(offset, offset + count, device=key.device)
    start = _mix(key[0] + _signed(stream * _GOLDEN)) ^ key[1]
    return _mix(_mix(start + counter) + _mix(key[1] + stream))


def uniform(key: Tensor, stream: int, count: int, offset: int = 0) -> Tensor:
    """Draw numbers strictly between 0 and 1, in steps of 2**-24."""
    return (_shift(bits(key, stream, count, offset), 41).float() + 0.5) * 2**-23


def normal(key: Tensor, stream: int, count: int, offset: int = 0) -> Tensor:
    """Draw standard normal numbers by the Box-Muller method, from two halves of the same bits."""
    drawn = bits(key, stream, count, offset)
    radius = ((_shift(drawn, 41).float() + 0.5) * 2**-23).log().mul(-2).sqrt()
    angle = (drawn & (2**23 - 1)).float() * (2 * math.pi * 2**-23)
    return radius * angle.cos()


def permutation(key: Tensor, stream: int, count: int) -> Tensor:
    """Draw a permutation of 0 to `count` - 1."""
    return bits(key, stream, count).argsort(stable=True)


def choice(key: Tensor, stream: int, count: int, options: int, offset: int = 0) -> Tensor:
    """Draw integers from 0 to `options` - 1."""
    return _shift(bits(key, stream, count, offset), 32) % options


def gamma(key: Tensor, stream: int, count: int, shape: float) -> Tensor:
    """Draw from the Gamma distribution by Marsaglia and Tsang, with a fixed number of tries."""
    import torch

    boosted = shape + 1 if shape < 1 else shape
    d = boosted - 1 / 3
    x = normal(key, 3 * stream, count * _TRIES).view(count, _TRIES)
    u = uniform(key, 3 * stream + 1, count * _TRIES).view(count, _TRIES)
    v = (1 + x / math.sqrt(9 * d)) ** 3
    inside = v > 0
    v = torch.where(inside, v, 1)
    accepted = inside & (u.log() < 0.5 * x**2 + d - d * v + d * v.log())
    first = accepted.int().argmax(dim=1, keepdim=True)
    drawn = d * v.gather(1, first).squeeze(1)
    if shape < 1:
        drawn = drawn * uniform(key, 3 * stream + 2, count) ** (1 / shape)
    return drawn


def beta(key: Tensor, stream: int, count: int, shape: float) -> Tensor:
    """Draw from the symmetric Beta distribution; uses streams 6 * stream to 6 * stream + 5."""
    one, other = gamma(key, 2 * stream, count, shape), gamma(key, 2 * stream + 1, count, shape)
    return one / (one + other).clamp_min(1e-30)
