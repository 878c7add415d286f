"""Batches that ranks and parts can and cannot share."""

import pytest

from pipelines.errors import ConfigError
from pipelines.sampling.order import check_divisible


@pytest.mark.parametrize(
    ("batch", "ranks", "parts", "suggested"),
    [(64, 3, 1, 63), (64, 4, 3, 60), (2, 4, 1, 4), (5, 2, 2, 4), (8, 3, 3, 9)],
)
def test_a_batch_that_cannot_be_shared_is_refused(batch, ranks, parts, suggested):
    with pytest.raises(ConfigError, match=f"batch {batch} does not divide") as caught:
        check_divisible(batch, ranks, parts)
    assert f"batch={suggested}," in caught.value.fix
    check_divisible(suggested, ranks, parts)


@pytest.mark.parametrize(
    ("batch", "ranks", "parts"), [(64, 1, 1), (64, 4, 2), (12, 3, 4), (0, 2, 1)]
)
def test_a_batch_that_can_be_shared_is_accepted(batch, ranks, parts):
    check_divisible(batch, ranks, parts)
