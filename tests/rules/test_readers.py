"""What must hold for every reader in the registry that is installed here."""

import itertools

import numpy as np
import pytest

from pipelines.readers import READERS
from tests.small_stores import make_store

NAMES = [name for name in READERS if READERS[name].installed]
INDICES = np.array([5, 5, 95, 0, 7, 31, 31, 2])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {
        "raw": make_store(folder / "raw"),
        "jpeg": make_store(folder / "jpeg", size=48, quality=90),
    }


@pytest.fixture(scope="module", params=NAMES)
def readers(request, stores):
    opened = {
        kind: READERS[request.param].open(store, "train", threads=2)
        for kind, store in stores.items()
    }
    yield opened
    for reader in opened.values():
        reader.close()


def test_images_come_in_the_order_requested_repeats_included(stores, readers):
    for kind, levels in (("raw", 0), ("jpeg", 8)):  # decoders with a fast inverse DCT differ
        found = np.empty((len(INDICES), *readers[kind].shape), dtype=np.uint8)
        readers[kind].read(INDICES, found)
        expected = np.stack([stores[kind].image("train", index) for index in INDICES])
        assert abs(found.astype(int) - expected).max() <= levels


def test_a_stream_yields_one_array_for_each_entry_of_its_plan(stores, readers):
    plan = [np.arange(size) for size in (4, 4, 7, 0, 2)]
    images = [np.array(found) for found in readers["raw"].stream(iter(plan))]
    assert [found.shape for found in images] == [(len(one), *readers["raw"].shape) for one in plan]


def test_an_endless_plan_is_read_only_as_far_as_needed(readers):
    requested = itertools.count()
    plan = (np.array([next(requested) % 96]) for _ in itertools.count())
    stream = readers["raw"].stream(plan)
    for _ in range(3):
        next(stream)
    stream.close()
    assert next(requested) < 200
