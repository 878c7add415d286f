"""Shared losses where a bound or an empty histogram counts."""

import torch

from fastssl.algorithms.common import losses


def test_a_ratio_of_histograms_sums_to_one_however_small_it_is():
    ratio = losses.normalized_ratio(torch.tensor([1e-4, 3e-4, 7.0]), torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(ratio, torch.tensor([0.25, 0.75, 0.0]))
    nothing = losses.normalized_ratio(torch.tensor([1.0, 2.0]), torch.zeros(2))
    assert nothing.tolist() == [0.0, 0.0]
