"""What holds for a run of every algorithm: it learns, and resumes bit-equal after a kill."""

import random

import pytest

from fastssl.algorithms import ALGORITHMS
from tests import runs

# The rules of algorithms resume every step function within one process. Here it is the command that
# is killed: three algorithms cover state of every kind, and `make slow` runs the others.
QUICK = ("flexmatch", "meanteacher", "remixmatch")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ALGORITHMS]
)
def test_a_killed_and_resumed_run_is_the_uninterrupted_one(name, data, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert runs.train(whole, f"algorithm={name}") == 0
    moment = random.Random(name).randrange(1, 8)
    assert runs.train(broken, f"algorithm={name}", kill_at=moment) == -9
    assert runs.train(broken, f"algorithm={name}", resume=True) == 0
    runs.assert_same_run(whole, broken)
    assert not runs.last(whole)["model"]["classifier.weight"].equal(start_weights(whole))


def start_weights(out):
    """Return the last layer's weights as the seed made them, before training."""
    from fastssl.config.resolve import load
    from fastssl.engine import devices
    from fastssl.engine.build import build_model

    resolved = load(out / "config.yaml")
    return build_model(resolved, 10, devices.choose(resolved.config)).state_dict()[
        "classifier.weight"
    ]
