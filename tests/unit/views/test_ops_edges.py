"""The table of ops, rotations beside a quarter turn, and the shared table of normalized bytes."""

import numpy as np
import pytest

from pipelines.views import OPS, apply_op
from pipelines.views.normalize import normalization_table
from tests import pillow_views

# FixMatch's RandAugment, as published.
PUBLISHED = {
    "AutoContrast": (0, 1),
    "Brightness": (0.05, 0.95),
    "Color": (0.05, 0.95),
    "Contrast": (0.05, 0.95),
    "Equalize": (0, 1),
    "Identity": (0, 1),
    "Posterize": (4, 8),
    "Rotate": (-30, 30),
    "Sharpness": (0.05, 0.95),
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "Solarize": (0, 256),
    "TranslateX": (-0.3, 0.3),
    "TranslateY": (-0.3, 0.3),
}


def test_ranges_are_the_published_ones_and_codes_their_order():
    found = {name: (OPS[name].low, OPS[name].high) for name in OPS}
    assert found == PUBLISHED
    assert [OPS[name].code for name in PUBLISHED] == list(range(14))


@pytest.mark.parametrize("degrees", [89.0, 91.0, 179.0, 181.0, 269.0, 271.0, 359.0, 1.0])
def test_a_degree_beside_a_quarter_turn_equals_pillow(degrees):
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    wanted = pillow_views.on_array("Rotate", image, degrees)
    np.testing.assert_array_equal(apply_op("Rotate", image, degrees), wanted)


def test_nobody_can_write_into_the_shared_table():
    table = normalization_table((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 1
    np.testing.assert_allclose(table[1, 255], 2.5, rtol=1e-6)
