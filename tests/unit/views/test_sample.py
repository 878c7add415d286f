"""The draw: replayable, the same for ranks, different where views must differ."""

import dataclasses

import numpy as np
import pytest

from pipelines.errors import ConfigError
from pipelines.views import OPS, Recipe, draw, names, recipes
from pipelines.views.ops import HEAD, WIDTH, parameters
from pipelines.views.sample import _fixed, philox
from tests import pillow_views

STRONG = recipes(flip=True, padding=4, size=(32, 32))["strong"]
SLOTS = np.arange(448)


def rows(recipe: Recipe = STRONG, slots: np.ndarray = SLOTS, **changed: int) -> np.ndarray:
    where = {"seed": 1, "step": 7, "stream": 1, "view": 0} | changed
    return draw(recipe, slots=slots, size=(32, 32), **where)


@pytest.mark.parametrize(
    ("key", "counter", "wanted"),
    [  # the known answers published with Random123
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    key: int, counter: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    halves = (key & 0xFFFFFFFF, key >> 32)
    assert philox(*(np.uint64(word) for word in (*halves, *counter))) == wanted
    assert tuple(pillow_views.philox(key, counter)) == wanted


def test_a_draw_can_be_made_again() -> None:
    np.testing.assert_array_equal(rows(), rows())


def test_slices_of_the_batch_equal_the_whole() -> None:
    whole = rows()
    for part in (slice(0, 224), slice(224, 448), slice(3, 4)):
        np.testing.assert_array_equal(rows(slots=SLOTS[part]), whole[part])
    np.testing.assert_array_equal(rows(slots=SLOTS[::-1]), whole[::-1])


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2},
        {"seed": 1 + 2**32},
        {"step": 8},
        {"step": 7 + 2**32},
        {"stream": 0},
        {"view": 1},
    ],
    ids=str,
)
def test_every_part_of_the_key_changes_the_draw(changed: dict[str, int]) -> None:
    differing = (rows() != rows(**changed)).any(axis=1)
    assert differing.mean() > 0.99


def test_slots_may_be_read_only_or_of_any_integer_type() -> None:
    for slots in (SLOTS.copy(), SLOTS.astype(np.int32), np.repeat(SLOTS, 2)[::2]):
        slots.flags.writeable = False
        np.testing.assert_array_equal(rows(slots=slots), rows())


def test_no_two_slots_of_a_batch_get_the_same_view() -> None:
    assert len(np.unique(rows(), axis=0)) == len(SLOTS)


def test_seeds_below_zero_are_seeds_too() -> None:
    assert (rows(seed=-1) != rows(seed=1)).any()


def test_flips_offsets_and_ops_are_uniform() -> None:
    many = rows(slots=np.arange(60_000))
    assert abs(many[:, 2].mean() - 0.5) < 0.01
    for column in (0, 1):
        shares = np.bincount(many[:, column], minlength=9) / len(many)
        assert len(shares) == 9 and np.abs(shares - 1 / 9).max() < 0.01
    for op in range(3):
        shares = np.bincount(many[:, HEAD + op * WIDTH], minlength=14) / len(many)
        assert len(shares) == 14 and np.abs(shares - 1 / 14).max() < 0.006
    codes = many[:, HEAD::WIDTH]
    assert abs((codes[:, 0] == codes[:, 1]).mean() - 1 / 14) < 0.01  # with replacement


def test_magnitudes_fill_their_ranges() -> None:
    many = rows(slots=np.arange(60_000))
    codes = many[:, HEAD]
    first = many[:, HEAD + 1]
    for name in ("Brightness", "Color", "Contrast", "Sharpness"):
        factors = first[codes == OPS[name].code].view(np.float32)
        assert 0.05 <= factors.min() < 0.06 and 0.94 < factors.max() <= 0.95
        assert abs(factors.mean() - 0.5) < 0.02
    bits = {int(v).bit_count() for v in first[codes == OPS["Posterize"].code]}
    assert bits == {4, 5, 6, 7}
    thresholds = first[codes == OPS["Solarize"].code]
    assert thresholds.min() <= 3 and thresholds.max() >= 254
    shifts = many[codes == OPS["TranslateX"].code, HEAD + 3] >> 16
    assert shifts.min() == -10 and shifts.max() == 10


def test_cutout_covers_at_most_half_the_width_and_its_end() -> None:
    many = rows(slots=np.arange(20_000))
    wide, high = many[:, 5] - many[:, 3], many[:, 6] - many[:, 4]
    assert wide.min() >= 1 and wide.max() == 16 and high.max() == 16
    assert many[:, 3:7].min() >= 0 and many[:, 3:7].max() == 32
    at_left = many[:, 3] == 0
    assert wide[at_left].max() == 16  # shifted, not clipped, at the left


def test_the_draw_says_what_the_table_says() -> None:
    """Parameters, drawn by compiled code, equal the ones that Python computes."""
    for size in ((32, 32), (96, 61), (224, 224)):
        recipe = Recipe("strong", True, 0, size, 3, True)
        where = {"seed": 3, "step": 2, "stream": 0, "view": 2}
        made = draw(recipe, slots=np.arange(1500), size=size, **where)
        for slot in range(1500):
            drawn = pillow_views.words(3, 2, 0, slot, 2, 12)
            for k in range(3):
                name = pillow_views.NAMES[drawn[6 + 2 * k] * 14 >> 32]
                op = OPS[name]
                magnitude = op.low + (op.high - op.low) * (drawn[7 + 2 * k] / 2**32)
                wanted = (op.code, *parameters(op.code, magnitude, size))
                got = made[slot, HEAD + k * WIDTH : HEAD + (k + 1) * WIDTH]
                assert tuple(got.tolist()) == wanted, (name, magnitude)


@pytest.mark.parametrize("place", range(6))
def test_a_map_near_a_rounding_edge_is_computed_again(place: int) -> None:
    values, row = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0], np.zeros(6, np.int32)
    assert _fixed(*values, row, 0) and row.tolist() == [65536, 0, 32768, 0, 65536, 32768]
    values[place] += 0.5 / 65536
    assert not _fixed(*values, row, 0)


def test_weak_views_have_no_ops_and_no_cutout() -> None:
    weak = recipes(flip=False, padding=2, size=(16, 16))["weak"]
    made = draw(weak, seed=0, step=0, stream=0, slots=SLOTS, view=0, size=(16, 16))
    assert made.shape == (448, HEAD) and made.dtype == np.int32
    assert not made[:, 2:].any()
    assert made[:, :2].min() == 0 and made[:, :2].max() == 4


def test_names_tell_the_ops_in_their_order() -> None:
    made = rows(slots=SLOTS[:5])
    for row, found in zip(made, names(made), strict=True):
        assert [OPS[name].code for name in found] == row[HEAD::WIDTH].tolist()


def test_an_empty_batch_draws_nothing() -> None:
    assert rows(slots=SLOTS[:0]).shape == (0, STRONG.columns)


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_any_number_of_ops_can_be_drawn(number: int) -> None:
    recipe = recipes(flip=True, padding=4, size=(32, 32), ops=number)["strong"]
    made = rows(recipe)
    assert made.shape == (448, HEAD + number * WIDTH)
    assert len(np.unique(made[:, -WIDTH])) == 14
    bare = dataclasses.replace(recipe, cutout=False)
    np.testing.assert_array_equal(rows(bare)[:, HEAD:], made[:, HEAD:])


@pytest.mark.parametrize(
    ("size", "padding", "given"), [((41, 32), 4, (32, 32)), ((32, 32), 8, (8, 32))]
)
def test_a_view_that_does_not_fit_is_refused(
    size: tuple[int, int], padding: int, given: tuple[int, int]
) -> None:
    recipe = Recipe("weak", True, padding, size, 0, False)
    with pytest.raises(ConfigError, match="pixels high"):
        draw(recipe, seed=0, step=0, stream=0, slots=SLOTS, view=0, size=given)
