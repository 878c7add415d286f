import pytest

from pipelines.datasets import DATASETS
from pipelines.views import default_recipes


@pytest.mark.parametrize("name", list(DATASETS))
def test_a_standard_data_set_has_the_views_of_its_table(name):
    known = DATASETS[name]
    side = known.train_size or known.size
    weak = default_recipes(name, (side, side))["weak"]
    assert (weak.size, weak.padding) == ((known.size, known.size), known.padding)
    assert weak.flip is known.flip


def test_own_images_keep_their_size_and_get_an_eighth_of_it_as_padding():
    strong = default_recipes("flowers", (48, 40))["strong"]
    assert strong.size == (48, 40) and strong.padding == 5 and strong.flip


def test_what_is_given_comes_before_the_table():
    weak = default_recipes("digits", (16, 16), size=12, flip=True, padding=0)["weak"]
    assert weak.size == (12, 12) and weak.padding == 0 and weak.flip
