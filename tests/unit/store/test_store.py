"""Opening stores: by path and by name, and what is said where there is none."""

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import pipelines
from pipelines.convert import Options, convert
from pipelines.convert.ensure import ensure_store
from pipelines.convert.open import open_source
from pipelines.datasets import DATASETS
from pipelines.errors import DataError
from pipelines.store.index import escape, unescape
from pipelines.store.manifest import digest, render
from pipelines.store.store import default_place, open_store
from pipelines.store.verify import verify
from tests.image_files import write_folder
from tests.small_stores import make_store


def test_a_store_is_found_by_path_and_by_name(data, monkeypatch, tmp_path):
    by_name, by_path = ensure_store("digits"), ensure_store(str(data / "digits"))
    assert by_name.fingerprint == by_path.fingerprint
    assert by_name.path == data / "digits"
    assert pipelines.open_store(data / "digits").name == "digits"
    monkeypatch.delenv("FASTSSL_DATA")
    assert str(default_place("cifar10")) == "data/cifar10"


def test_any_other_missing_store_says_what_to_type():
    with pytest.raises(DataError, match="not converted") as caught:
        ensure_store("cifar10")
    assert caught.value.fix.startswith("fastssl convert cifar10")
    assert "--download" in caught.value.fix
    assert caught.value.exit_code == 3
    with pytest.raises(DataError, match="not converted") as caught:
        ensure_store("imagenet")
    assert "--download" not in caught.value.fix, "a person must agree to its terms first"


def test_folders_that_are_no_stores(tmp_path):
    with pytest.raises(DataError, match="no converted dataset"):
        open_store(tmp_path / "nothing")
    with pytest.raises(DataError, match="not a converted dataset"):
        open_store(tmp_path)


def test_a_store_travels_between_processes(data):
    store = ensure_store("digits")
    store.image("train", 3)
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.image("train", 3), store.image("train", 3))


def test_records_say_where_the_bytes_lie(data):
    store = ensure_store("digits")
    for place in (0, 77, 359):
        record = store.records("test")[place]
        with store.shards("test")[record["shard"]].open("rb") as file:
            file.seek(int(record["offset"]))
            stored = file.read(int(record["size"]))
        assert stored == store.image("test", place).tobytes()
    for place in (360, -1):
        with pytest.raises(IndexError, match="of 360"):
            store.image("test", place)


def photos(folder):
    """Convert the same photographs, which lie in another folder each time."""
    source = write_folder(folder / "raw", per_class=6, size=(40, 40))
    convert(open_source(str(source), Options(test_fraction=0.3)), folder / "out", Options(size=32))
    return open_store(folder / "out")


def test_the_same_images_have_one_fingerprint_wherever_they_were_converted(tmp_path):
    here, there = photos(tmp_path / "here"), photos(tmp_path / "there")
    assert here.manifest_digest != there.manifest_digest  # it covers the paths in index.csv
    assert here.fingerprint == there.fingerprint and here.matches(there.fingerprint)
    assert here.matches(here.manifest_digest)  # as version 0.1.0 saved it
    assert not here.matches(there.manifest_digest)


@pytest.mark.parametrize("what", ["label", "image", "order", "class", "mean"])
def test_a_change_of_the_data_changes_the_fingerprint(tmp_path, what):
    before = make_store(tmp_path / "store", count=24, formats=("dali",)).fingerprint
    folder = tmp_path / "store"
    content = json.loads((folder / "dataset.json").read_bytes())
    records = np.load(folder / "train.npy")
    if what == "label":
        records["label"][3] = (records["label"][3] + 1) % 4
    elif what == "image":
        records["crc"][3] ^= 1
    elif what == "order":
        records[[3, 4]] = records[[4, 3]]
    elif what == "class":
        content["class_names"][0] = "other"
    else:
        content["mean"][0] += 0.01
    np.save(folder / "train.npy", records)
    content["files"]["train.npy"]["sha256"] = digest(folder / "train.npy")
    (folder / "dataset.json").write_bytes(render(content))
    assert open_store(folder).fingerprint != before


def test_a_store_without_a_test_split_is_opened_read_and_verified(tmp_path):
    make_store(tmp_path / "store", count=24, formats=("dali",))
    folder = tmp_path / "store"
    content = json.loads((folder / "dataset.json").read_bytes())
    del content["splits"]["test"]
    lines = (folder / "index.csv").read_text().splitlines(keepends=True)
    (folder / "index.csv").write_text("".join(line for line in lines if ",test," not in line))
    file = folder / "index.csv"
    content["files"]["index.csv"] = {"size": file.stat().st_size, "sha256": digest(file)}
    (folder / "dataset.json").write_bytes(render(content))
    store = open_store(folder)
    assert list(store.splits) == ["train"] and len(store.source_paths("train")) == 24
    assert store.fingerprint and verify(folder).problems == []


def copied(data, tmp_path):
    return shutil.copytree(data / "digits", tmp_path / "copy")


def test_files_that_are_gone_or_cut_are_noticed_at_once(data, tmp_path):
    copy = copied(data, tmp_path)
    file = copy / "train-00000.tar"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train-00000\.tar has"):
        open_store(copy)
    file.unlink()
    with pytest.raises(DataError, match="missing"):
        open_store(copy)


def test_a_manifest_of_another_version_or_kind(data, tmp_path):
    copy = copied(data, tmp_path)
    content = json.loads((copy / "dataset.json").read_bytes())
    (copy / "dataset.json").write_bytes(render({**content, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        open_store(copy)
    (copy / "dataset.json").write_bytes(render({**content, "kind": "else"}))
    with pytest.raises(DataError, match="damaged"):
        open_store(copy)
    (copy / "dataset.json").write_bytes(b"[]")
    with pytest.raises(DataError, match="damaged"):
        open_store(copy)


@pytest.mark.parametrize("shards", ["raw", ["other.tar"], [3], None])
def test_a_manifest_whose_shards_are_not_among_its_files(data, tmp_path, shards):
    store = copied(data, tmp_path)
    content = json.loads((store / "dataset.json").read_bytes())
    del content["sha256"]
    content["splits"]["train"]["shards"] = shards
    (store / "dataset.json").write_bytes(render(content))
    with pytest.raises(DataError, match="not as `convert` writes it"):
        open_store(store)


def _first_use(folder):
    import os

    os.environ["FASTSSL_DATA"] = folder
    return ensure_store("digits").fingerprint


def test_two_processes_may_use_the_digits_first_at_the_same_time(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_first_use, [str(tmp_path)] * 2)
    assert len(set(found)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits"]


def test_the_table_of_data_sets_is_as_published():
    assert list(DATASETS) == ["cifar10", "cifar100", "digits", "imagenet", "stl10", "svhn"]
    counts = {name: (DATASETS[name].train, DATASETS[name].test) for name in DATASETS}
    assert counts["svhn"] == (73_257 + 531_131, 26_032)
    assert counts["stl10"] == (5_000 + 100_000, 8_000)
    assert counts["imagenet"] == (1_281_167, 50_000)
    assert (DATASETS["imagenet"].train_size, DATASETS["imagenet"].size) == (256, 224)
    assert DATASETS["cifar10"].mean == (125.3 / 255, 123.0 / 255, 113.9 / 255)
    assert not DATASETS["digits"].flip


def test_stores_are_read_without_torch_or_any_extra(data):
    program = (
        "import sys; from pipelines.convert.ensure import ensure_store;"
        "s = ensure_store('digits'); s.image('train', 0); s.labels('train');"
        "s.source_paths('test');"
        "assert not {'torch', 'numba', 'ffcv', 'nvidia', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_paths_are_escaped_and_come_back():
    random = np.random.default_rng(0)
    alphabet = [*"ab\\x0u1\n\r\t,\"' é€", "\udcff", "\udc80", "\x85", "\u2028", "\0", "\x7f"]
    for _ in range(20):
        path = "".join(random.choice(alphabet, 30))
        text = escape(path)
        assert unescape(text) == path
        assert len(text.splitlines()) == 1 and text.encode()
