import os
import re
import shutil
import threading

import numpy as np
import pytest
import torch

from pipelines.errors import ConfigError, DataError
from pipelines.extras import install_line
from pipelines.readers import READERS, base
from pipelines.store.store import open_store
from tests.installed import INSTALLED_FORMATS, each, needs
from tests.small_stores import make_store

NAMES = each("resident", "ffcv", "dali")
STREAMING = each("ffcv", "dali")
FILES = {"ffcv": "train.beton", "dali": "train-00000.tar"}
COLUMNS = {"ffcv": "beton", "dali": "offset"}  # of the index: where an image begins
INDICES = np.array([5, 5, 95, 0, 7, 31, 31, 2])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {
        "raw": make_store(folder / "raw"),
        "jpeg": make_store(folder / "jpeg", size=48, quality=90),
    }


@pytest.fixture(scope="module")
def opened(stores):
    """Open every installed reader on every store once: FFCV compiles for seconds each time."""
    readers = {
        (kind, name): READERS[name].open(store, "train", threads=2 if kind == "raw" else 1)
        for kind, store in stores.items()
        for name in READERS
        if READERS[name].installed
    }
    yield readers
    for reader in readers.values():
        reader.close()


def read(reader, indices):
    out = np.empty((len(indices), *reader.shape), dtype=np.uint8)
    reader.read(indices, out)
    return out


@pytest.mark.parametrize("name", STREAMING)
def test_all_readers_decode_jpeg_to_the_same_bytes(opened, name):
    found, resident = (read(opened["jpeg", one], INDICES) for one in (name, "resident"))
    np.testing.assert_array_equal(found, resident)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_a_stream_follows_its_plan_through_all_sizes(opened, kind, name):
    random = np.random.default_rng(0)
    plan = [random.integers(0, 96, size) for size in (4, 4, 4, 4, 7, 0, 2, 7)]
    images = read(opened[kind, "resident"], np.arange(96))
    count = 0
    for indices, found in zip(plan, opened[kind, name].stream(iter(plan)), strict=True):
        np.testing.assert_array_equal(found, images[indices])
        count += 1
    assert count == len(plan)


@pytest.mark.parametrize("name", STREAMING)
def test_two_streams_of_a_reader_do_not_disturb_each_other(opened, name):
    reader = opened["raw", name]
    images = read(opened["raw", "resident"], np.arange(96))
    large, small = [np.arange(40), np.arange(40, 80)], [np.array([3]), np.array([4])]
    for wide, narrow, first, second in zip(
        reader.stream(large), reader.stream(small), large, small, strict=True
    ):
        np.testing.assert_array_equal(wide, images[first])
        np.testing.assert_array_equal(narrow, images[second])


def loader_threads():
    return {thread for thread in threading.enumerate() if thread.name == "loader"}


@needs("ffcv")
def test_a_stream_that_is_left_leaves_no_thread(opened):
    before = loader_threads()
    for batches in (1, 3, 50):  # with 50, the thread waits for a buffer that is free again
        stream = opened["raw", "ffcv"].stream([np.arange(8)] * batches)
        next(stream)
        assert batches < 50 or loader_threads() - before
        stream.close()
    assert loader_threads() <= before


@needs("ffcv")
def test_opening_ffcv_leaves_the_model_s_threads_alone(stores):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        reader = READERS["ffcv"].open(stores["raw"], "test", threads=1)
        next(iter(reader.stream([np.arange(2)])))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", INSTALLED_FORMATS)
def test_resident_reads_either_format(tmp_path, name):
    store = make_store(tmp_path / "one", count=24, formats=(name,))
    other = make_store(tmp_path / "two", count=24)
    found = read(READERS["resident"].open(store, "train"), np.arange(24))
    np.testing.assert_array_equal(
        found, read(READERS["resident"].open(other, "train"), np.arange(24))
    )


def hide(monkeypatch, *packages):
    """Make packages look as if they were not installed."""
    real = base.import_problem

    def problem(package):
        return "is not installed" if package in packages else real(package)

    monkeypatch.setattr(base, "import_problem", problem)


@pytest.mark.parametrize(("name", "package"), [("ffcv", "ffcv"), ("dali", "nvidia.dali")])
def test_a_reader_that_is_not_installed_names_the_pip_command(stores, monkeypatch, name, package):
    hide(monkeypatch, package)
    with pytest.raises(ConfigError) as caught:
        READERS[name].open(stores["raw"], "train")
    assert caught.value.fix == install_line(name)
    assert len(str(caught.value).splitlines()) == 2


def test_resident_needs_no_extra(stores, monkeypatch):
    hide(monkeypatch, "ffcv", "nvidia.dali")
    for kind in ("raw", "jpeg"):
        found = read(READERS["resident"].open(stores[kind], "train", threads=2), INDICES)
        wanted = np.stack([stores[kind].image("train", index) for index in INDICES])
        np.testing.assert_array_equal(found, wanted)


@needs("ffcv", "dali")
@pytest.mark.parametrize(("name", "formats"), [("ffcv", ("dali",)), ("dali", ("ffcv",))])
def test_a_store_without_the_format_says_so(tmp_path, name, formats):
    store = make_store(tmp_path / "store", count=24, formats=formats)
    line = f"fastssl convert SOURCE {store.path}-{name} --format {name}"
    with pytest.raises(ConfigError, match=rf"(?s)no {name} files.*{re.escape(line)}"):
        READERS[name].open(store, "train")


def damage(store, tmp_path, index, formats):
    """Copy a store and change one bit of one image, leaving every size as it was."""
    shutil.copytree(store.path, tmp_path / "damaged")
    for name in formats:
        path, column = tmp_path / "damaged" / FILES[name], COLUMNS[name]
        data = bytearray(path.read_bytes())
        data[int(store.records("train")[index][column]) + 700] ^= 1
        path.write_bytes(data)
    return open_store(tmp_path / "damaged")


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
@pytest.mark.parametrize("name", STREAMING)
def test_a_damaged_image_is_named_when_it_is_met(stores, tmp_path, kind, name):
    store = damage(stores[kind], tmp_path, 41, [name])
    reader = READERS[name].open(store, "train")
    plan = [np.arange(start, start + 16) for start in range(0, 96, 16)]
    met = 0
    with pytest.raises(DataError) as caught:
        for _ in reader.stream(plan):
            met += 1
    assert met <= 2  # image 41 stands in the third batch
    assert FILES[name] in caught.value.what and "image 41 of split train" in caught.value.what
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
@pytest.mark.parametrize("extras", [True, False])
def test_resident_finds_any_damage_before_the_first_step(
    stores, tmp_path, monkeypatch, kind, extras
):
    store = damage(stores[kind], tmp_path, 41, INSTALLED_FORMATS)  # it reads either one
    if not extras:
        hide(monkeypatch, "ffcv", "nvidia.dali")
    with pytest.raises(DataError, match="image 41 of split train is damaged in"):
        READERS["resident"].open(store, "train")


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_index_is_refused_when_it_is_opened(stores, tmp_path, name):
    shutil.copytree(stores["raw"].path, tmp_path / "damaged")
    path = tmp_path / "damaged" / "train.npy"
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train\.npy is damaged"):
        READERS[name].open(open_store(tmp_path / "damaged"), "train")


@needs("ffcv")
def test_the_tables_in_a_beton_decide_nothing(stores, opened, tmp_path):
    shutil.copytree(stores["jpeg"].path, tmp_path / "changed")
    path, records = tmp_path / "changed" / "train.beton", stores["jpeg"].records("train")
    data = np.fromfile(path, np.uint8)
    kept = np.zeros(len(data), dtype=bool)
    for start, size in zip(records["beton"].tolist(), records["size"].tolist(), strict=True):
        kept[start : start + size] = True
    data[~kept] = 255  # header, fields, images and allocations, where FFCV's reader would look
    data.tofile(path)
    reader = READERS["ffcv"].open(open_store(tmp_path / "changed"), "train")
    np.testing.assert_array_equal(read(reader, INDICES), read(opened["jpeg", "ffcv"], INDICES))


@pytest.mark.parametrize("name", STREAMING)
def test_a_file_that_was_cut_short_is_refused_in_every_batch(stores, tmp_path, name):
    shutil.copytree(stores["raw"].path, tmp_path / "cut")
    path = tmp_path / "cut" / FILES[name]
    reader = READERS[name].open(open_store(tmp_path / "cut"), "train")
    plan = [np.arange(16)] * 40
    read(reader, plan[0])  # met: no checksum looks at them any more
    stream = reader.stream(plan)
    next(stream)
    os.truncate(path, path.stat().st_size - 1)  # its page stays: the tests go on either way
    given = 1
    with pytest.raises(
        DataError, match=rf"{FILES[name]} was cut short while it was read"
    ) as caught:
        for _ in stream:
            given += 1
    assert given < 6 and caught.value.exit_code == 3  # what was decoded before is good
    stream.close()
    with pytest.raises(DataError, match="cut short"):
        read(reader, np.arange(2))
