"""Fully supervised: learn from all training data with all their labels: an upper reference.

No method that is given fewer labels is expected to pass it. Loss: H(y, p(x)). The labeled stream
is the whole training set; there is no unlabeled stream.
"""

from __future__ import annotations

from fastssl.algorithms import supervised
from fastssl.algorithms.base import (
    Batch,
    Nets,
    Ranks,
    Settings,
    State,
    StepOutput,
    Tensor,
    algorithm,
)


class FullySupervisedSettings(Settings):
    """There are no settings."""


@algorithm("fullysupervised", config=FullySupervisedSettings, forwards="1: labeled", labeled="all")
def step(
    nets: Nets,
    batch: Batch,
    state: State,
    config: FullySupervisedSettings,
    progress: Tensor,
    ranks: Ranks,
) -> StepOutput:
    """Compute the cross-entropy of labeled images, drawn from all training data."""
    return supervised.step(nets, batch, state, config, progress, ranks)
