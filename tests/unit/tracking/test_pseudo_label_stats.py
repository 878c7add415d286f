"""The true quality of pseudo-labels against plain counting, and without a wait for the device."""

import random

import pytest
import torch

from fastssl.algorithms.base import StepOutput
from fastssl.distributed.collectives import Ranks
from fastssl.tracking.pseudo_label_stats import PseudoLabelStats
from tests.fake_cuda import fake_cuda, no_host_wait

CLASSES = 4


def output(pseudo_label, trusted):
    return StepOutput(loss=torch.zeros(()), metrics={}, pseudo_label=pseudo_label, trusted=trusted)


def counted(truth, steps):
    """Count by hand, image by image."""
    seen, trusted, right = ([0] * CLASSES for _ in range(3))
    for pseudo_label, trust, positions in steps:
        for one, confidence, place in zip(pseudo_label, trust, positions, strict=True):
            if truth[place] < 0:
                continue
            seen[truth[place]] += 1
            trusted[truth[place]] += confidence
            right[truth[place]] += confidence and one == truth[place]
    return seen, trusted, right


def test_quality_is_what_plain_counting_finds():
    dice = random.Random(0)
    truth = [dice.choice([-1, 0, 1, 2]) for _ in range(50)]  # class 3 never occurs
    quality = PseudoLabelStats(torch.tensor(truth, dtype=torch.int16), CLASSES)
    steps = []
    for _ in range(3):
        positions = [dice.randrange(50) for _ in range(20)]  # they may repeat
        # -1 is no pseudo-label: it must not count as right where the truth is unknown.
        pseudo_label = [dice.choice([-1, 0, 1, 2, 3]) for _ in positions]
        trust = [dice.random() < 0.6 for _ in positions]
        steps.append((pseudo_label, trust, positions))
        quality.add(
            output(torch.tensor(pseudo_label), torch.tensor(trust)), torch.tensor(positions)
        )
    seen, trusted, right = counted(truth, steps)
    assert sum(seen) < 60 and 0 < sum(right) < sum(trusted) < sum(seen)
    found = quality.read(Ranks())
    assert found["pseudo/coverage"] == pytest.approx(sum(trusted) / sum(seen))
    assert found["pseudo/accuracy"] == pytest.approx(sum(right) / sum(trusted))
    for name, parts, wholes in (("coverage", trusted, seen), ("accuracy", right, trusted)):
        wanted = [p / w if w else None for p, w in zip(parts, wholes, strict=True)]
        assert found[f"pseudo_class_{name}"] == pytest.approx(wanted, abs=1e-6)
    assert found["pseudo_class_coverage"][3] is None
    assert quality.read(Ranks()) == {}, "the sums begin anew"


def test_nothing_is_reported_where_no_truth_is_known():
    quality = PseudoLabelStats(torch.full((5,), -1), CLASSES)
    quality.add(output(torch.zeros(5).long(), torch.ones(5)), torch.arange(5))
    assert quality.read(Ranks()) == {}


def test_adding_never_waits_for_the_device():
    real = PseudoLabelStats(torch.tensor([0, -1, 2]), CLASSES)
    with fake_cuda():
        real.truth = torch.empty(3, dtype=torch.int64, device="cuda")
        real.sums = torch.zeros((3, CLASSES + 1), device="cuda")
        pseudo_label = torch.empty(8, dtype=torch.int64, device="cuda")
        trusted = torch.empty(8, dtype=torch.bool, device="cuda")
        with no_host_wait():
            real.add(
                output(pseudo_label, trusted), torch.empty(8, dtype=torch.int64, device="cuda")
            )
