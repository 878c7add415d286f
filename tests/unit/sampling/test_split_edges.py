"""What a split suggests, and that it stays as it was made."""

import dataclasses

import numpy as np
import pytest

from pipelines.errors import ConfigError
from pipelines.sampling.split import make_split

LABELS = np.arange(1000) % 10


@pytest.mark.parametrize(
    ("wanted", "suggested", "per_class"), [(3, 10, 1), (44, 40, 4), (46, 50, 5), (47, 50, 5)]
)
def test_the_nearest_possible_number_of_labels_is_suggested(wanted, suggested, per_class):
    with pytest.raises(ConfigError) as caught:
        make_split(LABELS, 10, labels_wanted=wanted, seed=0)
    assert f"labels={suggested}, or labels={per_class}/class" in caught.value.fix


def test_a_split_cannot_be_changed():
    split = make_split(LABELS, 10, labels_wanted=40, seed=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.labeled = split.unlabeled


def test_a_published_split_may_name_images_of_the_first_class(tmp_path):
    path = tmp_path / "split.txt"
    path.write_text("0\n10\n11\n")
    split = make_split(LABELS, 10, labels_wanted="all", seed=0, index_file=path)
    assert split.labeled.tolist() == [0, 10, 11]
