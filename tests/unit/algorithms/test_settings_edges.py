"""The bounds of the settings: the last value inside is accepted, the first one outside is not."""

import math

import pytest
from pydantic import ValidationError

from fastssl.algorithms import ALGORITHMS, freematch, softmatch
from fastssl.algorithms.common import cpl

SHARE = ([0.0, 1.0], [-1e-9, 1 + 1e-9])  # values inside, values outside
DECAY = ([0.0, math.nextafter(1.0, 0.0)], [-1e-9, 1.0])
WEIGHT = ([0.0, 1e6], [-1e-9])
POSITIVE = ([1e-9, 1e6], [0.0])
BOUNDS = {
    "threshold": ([1e-9, 1.0], [0.0, 1 + 1e-9]),
    "floor": SHARE,
    "lowest": SHARE,
    "highest": SHARE,
    "ramp": SHARE,
    "prior_decay": DECAY,
    "alignment_decay": DECAY,
    "decay": DECAY,
    "unlabeled_weight": WEIGHT,
    "entropy_weight": WEIGHT,
    "strong_weight": WEIGHT,
    "rotation_weight": WEIGHT,
    "fairness_weight": WEIGHT,
    "class_balance": WEIGHT,
    "temperature": POSITIVE,
    "alpha": POSITIVE,
    "radius": POSITIVE,
    "probe": POSITIVE,
    "sigmas": POSITIVE,
    "iterations": ([1, 9], [0]),
}


@pytest.mark.parametrize("key", BOUNDS)
def test_settings_are_accepted_within_their_bounds_only(key):
    inside, outside = BOUNDS[key]
    configs = {one.config for one in ALGORITHMS.values() if key in one.config.model_fields}
    assert configs, "no algorithm has this setting"
    for config in configs:
        for value in inside:
            assert getattr(config(**{key: value}), key) == value
        for value in outside:
            with pytest.raises(ValidationError):
                config(**{key: value})


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_settings_cannot_be_changed_and_unknown_ones_are_refused(name):
    config = ALGORITHMS[name].config
    with pytest.raises(ValidationError):
        config(no_such_setting=1)
    for key, value in config():
        with pytest.raises(ValidationError):
            setattr(config(), key, value)


OWN = {"flexmatch": cpl.thresholds, "flexpl": cpl.thresholds, "flexuda": cpl.thresholds}
OWN |= {"freematch": freematch.thresholds, "softmatch": softmatch.thresholds}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_thresholds_are_the_algorithm_s_own_or_the_setting_for_every_class(name):
    algorithm = ALGORITHMS[name]
    if name in OWN:
        assert algorithm.thresholds is OWN[name]
    elif "threshold" in algorithm.config.model_fields:
        config = algorithm.config(threshold=0.75)
        assert algorithm.thresholds({}, config, 3).tolist() == [0.75] * 3
    else:
        assert algorithm.thresholds is None
