"""What one rank keeps for every image of a dataset: never more than 64 bytes."""

import numpy as np
import pytest
import torch

from fastssl.algorithms import ALGORITHMS, DatasetInfo
from fastssl.tracking.pseudo_label_stats import PseudoLabelStats
from pipelines.sampling.order import Order
from pipelines.store.store import open_store
from tests.installed import each
from tests.small_stores import CLASSES, make_store

MOST, MARKS = 64, 8  # bytes an image


def tensors(states):
    return sum(t.numel() * t.element_size() for t in states)


def test_marks_and_other_memories_of_every_algorithm():
    small, large = 1_000, 101_000
    for name in ALGORITHMS:
        algorithm = ALGORITHMS[name]
        held = []
        for images in (small, large):
            facts = DatasetInfo(1000, images, torch.full((1000,), 0.001), "cpu")
            state = algorithm.init_state(algorithm.config(), facts)
            held.append(tensors(state.values()))
        assert (held[1] - held[0]) / (large - small) < MARKS, name


def arrays(item, seen=None):
    """Return the bytes of all arrays reachable from an object of ours."""
    seen = set() if seen is None else seen
    if id(item) in seen:
        return 0
    seen.add(id(item))
    if isinstance(item, np.memmap):
        return 0
    if isinstance(item, np.ndarray):
        base = item.base if isinstance(item.base, np.ndarray) else item
        if isinstance(base, np.memmap) or (base is not item and id(base) in seen):
            return 0
        seen.add(id(base))
        return base.nbytes
    if isinstance(item, torch.Tensor):
        return item.numel() * item.element_size()
    if isinstance(item, dict):
        return sum(arrays(value, seen) for value in item.values())
    if isinstance(item, list | tuple):
        return sum(arrays(value, seen) for value in item)
    if type(item).__module__.split(".")[0] in ("pipelines", "fastssl", "ffcv"):
        names = [*getattr(item, "__dict__", {}), *getattr(type(item), "__slots__", ())]
        return sum(arrays(getattr(item, name, None), seen) for name in names)
    return 0


def held(folder, count, reader):
    """Return the bytes that loading a step of a streamed store keeps."""
    from fastssl.config.resolve import load
    from fastssl.engine.build_data import view_recipes
    from pipelines.loader.loader import Loader
    from pipelines.sampling.split import make_split

    make_store(folder, count=count, size=16, quality=90)
    store = open_store(folder)
    labels = store.labels("train")
    split = make_split(labels, CLASSES, labels_wanted=8, seed=0)
    order = Order(0, len(split.labeled), len(split.unlabeled), 4, 8)
    resolved = load("own", [f"store={folder}"])
    made = view_recipes(resolved, store)
    with Loader(
        store,
        split,
        order,
        views={"weak": "weak"},
        recipes=made,
        seed=0,
        reader=reader,
    ) as loader:
        loader.batch(0)
        truth = PseudoLabelStats(torch.zeros(len(split.unlabeled), dtype=torch.int16), CLASSES)
        return arrays([loader, store, truth])


@pytest.mark.parametrize("reader", each("ffcv", "dali"))
def test_tables_of_store_order_split_and_readers(tmp_path, reader):
    few, many = (held(tmp_path / str(count), count, reader) for count in (96, 1056))
    grown = (many - few) / (1056 - 96)
    # besides these: at most 8 bytes a mark and 2 of what is known of its truth
    assert 0 < grown <= MOST - MARKS, f"{reader} keeps {grown:.1f} bytes an image"
