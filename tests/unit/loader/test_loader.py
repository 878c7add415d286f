import copy
import threading
from dataclasses import fields

import numpy as np
import pytest
import torch

import pipelines
from pipelines.errors import ConfigError, DataError
from pipelines.loader.loader import Loader
from pipelines.sampling.order import Order
from pipelines.sampling.split import Split, make_split
from pipelines.views import apply, draw, recipes
from tests.installed import each
from tests.small_stores import make_store

VIEWS = {"weak": "weak", "strong": "strong", "other": "strong"}
RECIPES = recipes(flip=True, padding=4, size=(32, 32))
BATCH, UNLABELED = 8, 24


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("loader") / "raw")


def open_loader(store, labeled_only=0, **given):
    split = make_split(store.labels("train"), store.classes, labels_wanted=8, seed=0)
    order = Order(1, len(split.labeled), len(split.unlabeled), BATCH, UNLABELED, labeled_only)
    given = {"views": VIEWS, "recipes": RECIPES, "seed": 1, "reader": "resident"} | given
    return Loader(store, split, order, **given)


def tensors(batch):
    parts = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "views"}
    return parts | {f"view {name}": view for name, view in batch.views.items()}


def assert_same(one, other):
    one, other = tensors(one), tensors(other)
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def steps(loader, first, last):
    """Iterate, keeping copies: the buffers of a batch go round."""
    return [copy.deepcopy(batch) for batch in loader.iterate(first, last)]


@pytest.fixture(scope="module")
def reference(store):
    with open_loader(store) as loader:
        return [copy.deepcopy(loader.batch(step)) for step in range(7)]


def test_a_batch_holds_what_order_and_draw_say(store):
    with open_loader(store) as loader:
        batch = loader.batch(5)
    split, order = loader.split, loader.order
    labeled, positions = split.labeled[order.labeled(5)], order.unlabeled(5)
    assert batch.labels.tolist() == store.labels("train")[labeled].tolist()
    assert batch.position.tolist() == batch.global_positions.tolist() == positions.tolist()
    common = {"seed": 1, "step": 5, "size": (32, 32)}
    weak = draw(RECIPES["weak"], stream=0, view=0, slots=np.arange(BATCH), **common)
    images = np.stack([store.image("train", index) for index in labeled])
    (wanted,) = apply(images, [weak], [RECIPES["weak"]], mean=store.mean, std=store.std)
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1), wanted)
    images = np.stack([store.image("train", index) for index in split.unlabeled[positions]])
    for view, (name, recipe) in enumerate(VIEWS.items()):
        rows = draw(RECIPES[recipe], stream=1, view=view, slots=np.arange(UNLABELED), **common)
        (wanted,) = apply(images, [rows], [RECIPES[recipe]], mean=store.mean, std=store.std)
        np.testing.assert_array_equal(batch.views[name].permute(0, 2, 3, 1), wanted)


def test_tensors_are_channels_last_and_of_the_types_that_a_step_expects(reference):
    batch = reference[0]
    for images in (batch.images, *batch.views.values()):
        assert images.dtype == torch.float32 and images.shape[1:] == (3, 32, 32)
        assert images.is_contiguous(memory_format=torch.channels_last)
    for numbers in (batch.labels, batch.position, batch.global_positions, batch.key):
        assert numbers.dtype == torch.int64
    assert list(batch.views) == list(VIEWS) and batch.key.shape == (2,)
    assert len({tuple(b.key.tolist()) for b in reference}) == len(reference)


def test_labeled_images_may_get_strong_views(store):
    with open_loader(store, labeled_view="strong") as loader:
        batch = loader.batch(5)
    rows = draw(
        RECIPES["strong"], seed=1, step=5, stream=0, slots=np.arange(BATCH), view=0, size=(32, 32)
    )
    labeled = loader.split.labeled[loader.order.labeled(5)]
    images = np.stack([store.image("train", index) for index in labeled])
    (wanted,) = apply(images, [rows], [RECIPES["strong"]], mean=store.mean, std=store.std)
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1), wanted)


@pytest.mark.parametrize("reader", each("resident", "dali"))
def test_steps_without_unlabeled_images_neither_read_nor_view_them(store, reference, reader):
    with open_loader(store, labeled_only=2, reader=reader) as loader:
        lengths, plain = [], loader.reader.stream

        def stream(plan):
            return plain(lengths.append(len(one)) or one for one in plan)

        loader.reader.stream = stream
        found = steps(loader, 0, 4)
        assert lengths == [BATCH, BATCH, BATCH + UNLABELED, BATCH + UNLABELED]
        for one, whole in zip(found[:2], reference, strict=False):
            assert one.views == {} and one.position.shape == one.global_positions.shape == (0,)
            assert torch.equal(one.images, whole.images) and torch.equal(one.labels, whole.labels)
            assert torch.equal(one.key, whole.key)
        for one, whole in zip(found[2:], reference[2:4], strict=True):
            assert_same(one, whole)
        assert_same(loader.batch(1), found[1])


def assert_slices(loader, first, wanted):
    """Compare what two ranks see from step `first` on, put together, with the whole."""
    loader._world, parts = 2, []  # by hand: to open FFCV again would compile for seconds
    for loader._rank in range(2):
        parts.append(steps(loader, first, first + len(wanted)))
    loader._rank, loader._world = 0, 1
    for one, other, whole in zip(*parts, wanted, strict=True):
        one, other, whole = tensors(one), tensors(other), tensors(whole)
        for name in whole.keys() - {"key", "global_positions"}:
            assert torch.equal(torch.cat([one[name], other[name]]), whole[name]), name


# FFCV compiles for seconds; its threads are tried in test_readers.
@pytest.mark.parametrize(
    ("reader", "threads"),
    each(("resident", 1), ("resident", 2), ("ffcv", 1), ("dali", 1), ("dali", 2)),
)
def test_every_reader_gives_the_same_views_to_both_kernels_also_after_a_resume(
    store, reference, reader, threads
):
    with open_loader(store, reader=reader, threads=threads) as loader:
        plain = loader.reader.stream
        for stream in (plain, lambda plan: (torch.from_numpy(given) for given in plain(plan))):
            loader.reader.stream = stream  # tensors go to the kernel for devices
            for found, wanted in zip(steps(loader, 0, 7), reference, strict=True):
                assert_same(found, wanted)
            for found, wanted in zip(steps(loader, 4, 7), reference[4:], strict=True):
                assert_same(found, wanted)
            assert_same(loader.batch(2), reference[2])
            assert_slices(loader, 4, reference[4:])


@pytest.mark.parametrize("world", [2, 4])
def test_the_slices_of_the_ranks_are_the_whole(store, reference, world):
    ranks = [open_loader(store, rank=rank, world=world) for rank in range(world)]
    for step, whole in enumerate(reference[:3]):
        parts = [tensors(loader.batch(step)) for loader in ranks]
        for name, wanted in tensors(whole).items():
            if name in ("key", "global_positions"):
                assert all(torch.equal(part[name], wanted) for part in parts)
            else:
                assert torch.equal(torch.cat([part[name] for part in parts]), wanted), name


def test_a_batch_that_ranks_cannot_share_is_refused(store):
    with pytest.raises(ConfigError, match="batch 8 does not divide by 3 ranks"):
        open_loader(store, rank=0, world=3)


def test_a_view_of_an_unknown_recipe_is_refused(store):
    with pytest.raises(ConfigError, match="no view recipe is named 'medium'; there are: strong"):
        open_loader(store, views={"weak": "medium"})


def test_two_views_of_one_recipe_and_an_image_in_both_streams_differ(store):
    everything = np.arange(96)
    labels = store.labels("train")
    split = Split(np.flatnonzero(labels >= 0), everything, everything[:0])
    order = Order(0, len(split.labeled), 96, 24, 96)
    with Loader(
        store, split, order, views={"one": "weak", "two": "weak"}, recipes=RECIPES, seed=0
    ) as loader:
        batch = loader.batch(0)
    assert (batch.views["one"] != batch.views["two"]).any(dim=(1, 2, 3)).float().mean() > 0.9
    at = {place: slot for slot, place in enumerate(batch.position.tolist())}
    indices = split.labeled[order.labeled(0)]
    twins = torch.stack([batch.views["one"][at[index]] for index in indices])
    assert (batch.images != twins).any(dim=(1, 2, 3)).float().mean() > 0.9


def test_an_image_that_stands_twice_in_a_batch_gets_two_views(store):
    split = Split(np.array([1]), np.arange(96), np.arange(0))
    with Loader(
        store, split, Order(0, 1, 96, 16, 16), views=VIEWS, recipes=RECIPES, seed=0
    ) as loader:
        images = loader.batch(0).images
    assert len({image.numpy().tobytes() for image in images}) > 12


def test_a_batch_is_whole_until_the_one_after_the_next_is_requested(store, reference):
    with open_loader(store, prefetch=1) as loader:
        batches = loader.iterate(0, 7)
        before = next(batches)
        for step in range(1, 7):
            batch = next(batches)
            assert_same(before, reference[step - 1])
            before = batch
        addresses = set()
        for batch in loader.iterate(0, 7):
            addresses.add(batch.images.data_ptr())
        assert len(addresses) == 3  # one ahead and two held


def test_without_unlabeled_images_there_are_no_views(store, reference):
    split = make_split(store.labels("train"), store.classes, labels_wanted=8, seed=0)
    order = Order(1, 8, 0, BATCH, 0)
    with Loader(store, split, order, views={}, recipes=RECIPES, seed=1) as loader:
        (batch,) = loader.iterate(3, 4)
    assert torch.equal(batch.images, reference[3].images)
    assert batch.views == {} and len(batch.position) == len(batch.global_positions) == 0


@pytest.mark.parametrize("reader", each("resident", "dali"))
def test_an_error_in_the_background_reaches_the_consumer(store, reader, monkeypatch):
    with open_loader(store, reader=reader) as loader:
        made = loader._make

        def fail(plan, *rest):
            if plan.step == 2:
                raise DataError("image 7 is damaged", "convert again")
            return made(plan, *rest)

        monkeypatch.setattr(loader, "_make", fail)
        before = set(threading.enumerate())
        seen = 0
        with pytest.raises(DataError, match="image 7"):
            for _ in loader.iterate(0, 7):
                seen += 1
        assert seen == 2
        assert "loader" not in {t.name for t in set(threading.enumerate()) - before}


@pytest.mark.parametrize("reader", each("resident", "ffcv", "dali"))
def test_leaving_early_leaves_no_thread(store, reader):
    with open_loader(store, reader=reader) as loader:
        before = set(threading.enumerate())
        batches = loader.iterate(0, 1000)
        next(batches)
        batches.close()
        assert {t.name for t in set(threading.enumerate()) - before} <= {"views_0", "views_1"}
        kept = loader.iterate(0, 1000)  # still under way when the loader is closed
        next(kept)
    assert {t.name for t in set(threading.enumerate()) - before} <= {"views_0", "views_1"}
    with pytest.raises(StopIteration):
        next(kept)


def test_waiting_is_counted_and_working_is_not(store, monkeypatch):
    clock = iter(range(1000))
    with open_loader(store) as loader:
        monkeypatch.setattr("pipelines.loader.loader.time.perf_counter", lambda: float(next(clock)))
        assert len(list(loader.iterate(0, 5))) == 5
        assert loader.waited == 6.0  # one tick for each batch, and one for the end


def test_the_loader_says_which_reader_it_took(store):
    with open_loader(store, reader="auto") as loader:
        assert loader.choice.startswith("resident: 96 images of 32×32 take 0.3 MB")  # noqa: RUF001
    with pytest.raises(ConfigError, match="no reader is named 'fcv'"):
        open_loader(store, reader="fcv")


def test_open_loader_for_outsiders(store, data):
    with pipelines.open_loader(store, labels=8, batch=4, ratio=2) as loader:
        batch = next(loader.iterate(0, 1))
    assert batch.images.shape == (4, 3, 32, 32) and batch.views["strong"].shape == (8, 3, 32, 32)
    with pipelines.open_loader("digits", labels=40, batch=4, ratio=2) as loader:
        weak = loader.labeled_view
        assert weak.flip is False and weak.padding == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("reader", each("resident", "ffcv", "dali"))
def test_batches_on_a_gpu_are_those_of_the_cpu(store, reference, reader):
    with open_loader(store, reader=reader, device="cuda") as loader:
        for found, wanted in zip(steps(loader, 0, 7), reference, strict=True):
            for name, tensor in tensors(found).items():
                assert torch.equal(tensor.cpu(), tensors(wanted)[name]), name
