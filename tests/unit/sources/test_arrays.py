"""One's own data as arrays in a `.npz`."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipelines.convert import Options, convert
from pipelines.convert.open import open_source
from pipelines.errors import ConfigError, DataError
from pipelines.sources import array_chunks, arrays
from pipelines.store.store import Store, open_store
from pipelines.store.verify import verify
from tests.reading import check


def stored(source: Path, out: Path, **own) -> Store:
    convert(open_source(str(source), Options(**own)), out, Options(formats=("dali",), workers=1))
    assert verify(out).problems == []
    return open_store(out)


def write_npz(path: Path, **more) -> dict:
    random = np.random.default_rng(0)
    content = {
        "images": random.integers(0, 256, (600, 8, 8, 3), dtype=np.uint8),
        "labels": random.integers(-1, 4, 600),
        **more,
    }
    np.savez_compressed(path, **content)
    return content


def test_arrays(tmp_path):
    made = write_npz(tmp_path / "mine.npz")
    store = stored(tmp_path / "mine.npz", tmp_path / "out", test_fraction=0.2)
    train = [int(path.split(":")[-1]) for path in store.source_paths("train")]
    np.testing.assert_allclose(store.mean, made["images"][train].mean((0, 1, 2)) / 255, atol=2e-6)
    assert (store.name, store.class_names) == ("mine", ["0", "1", "2", "3"])
    places = {}
    for split in store.splits:
        places[split] = [int(path.split(":")[-1]) for path in store.source_paths(split)]
        check(store, split, made["images"][places[split]], made["labels"][places[split]].tolist())
    assert sorted(places["train"] + places["test"]) == list(range(600))
    assert (store.labels("test") >= 0).all()


def test_grey_arrays_with_words_for_labels_and_a_test_set(tmp_path):
    grey = np.arange(4 * 9 * 9, dtype=np.uint8).reshape(4, 9, 9)
    write_npz(
        tmp_path / "mine.npz",
        images=grey,
        labels=np.array(["dog", "", "cat", "dog"]),
        test_images=grey[:2],
        test_labels=np.array(["cat", "dog"]),
    )
    store = stored(tmp_path / "mine.npz", tmp_path / "out")
    assert store.class_names == ["cat", "dog"]
    check(store, "train", np.repeat(grey[..., None], 3, axis=3), [1, -1, 0, 1])
    check(store, "test", np.repeat(grey[:2, ..., None], 3, axis=3), [0, 1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": np.zeros((600, 8, 8, 3), np.float32)},
        {"images": np.zeros((600, 8, 8, 4), np.uint8)},
        {"images": np.zeros((599, 8, 8, 3), np.uint8)},
        {"images": np.asfortranarray(np.zeros((600, 8, 8, 3), np.uint8))},
        {"labels": np.zeros(600)},
        {"labels": np.full(600, -2)},
        {"labels": np.array([{}] * 600, object)},
        {"labels": np.array([""] * 600)},
        {"labels": np.full(600, -1), "class_names": np.array([], str)},
        {"images": np.array([None] * 600, object)},
    ],
)
def test_arrays_that_are_wrong(wrong, tmp_path):
    write_npz(tmp_path / "mine.npz", **wrong)
    with pytest.raises(DataError):
        open_source(str(tmp_path / "mine.npz"), Options())


@pytest.mark.parametrize("label", [-1, -5, 2_000_000_000, 40_000])
def test_labels_out_of_range_are_refused_before_classes_are_counted(label, tmp_path, monkeypatch):
    made = lambda *_: pytest.fail("a list of classes is made")  # noqa: E731
    monkeypatch.setattr(arrays, "range", made, raising=False)
    write = {"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([-1, label])}
    np.savez(tmp_path / "mine.npz", **write)
    with pytest.raises(DataError, match=f"label is {max(label, -1)}"):
        open_source(str(tmp_path / "mine.npz"), Options())


@pytest.mark.parametrize("name", ["labels", "class_names"])
@pytest.mark.parametrize(("shape", "kind"), [("(2000000000,)", "|u1"), ("(2,)", "<U400000000")])
def test_labels_that_would_fill_the_memory_are_not_unpacked(
    name, shape, kind, tmp_path, monkeypatch
):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    np.savez(tmp_path / "mine.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    with zipfile.ZipFile(tmp_path / "mine.npz", "a") as archive:
        archive.writestr(f"{name}.npy", array)
    unpack = lambda *_, **__: pytest.fail("it is unpacked")  # noqa: E731
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", unpack)
    with pytest.raises(DataError, match="too many or too long"):
        open_source(str(tmp_path / "mine.npz"), Options())


def test_large_images_are_read_a_few_at_a_time(tmp_path):
    images = np.zeros((40, 900, 900, 3), np.uint8)
    np.savez_compressed(tmp_path / "mine.npz", images=images, labels=np.arange(40) % 2)
    raw = open_source(str(tmp_path / "mine.npz"), Options(test_fraction=0))
    sizes = [chunk.images.nbytes for chunk in raw.splits["train"].chunks()]
    assert sum(sizes) == images.nbytes and max(sizes) <= 1 << 24
    in_memory = [chunk.images.nbytes for chunk in array_chunks(images, np.zeros(40), "memory")]
    assert sum(in_memory) == images.nbytes and max(in_memory) <= 1 << 24


def test_a_class_name_that_appears_twice_is_refused(tmp_path):
    write_npz(tmp_path / "mine.npz", class_names=np.array(["a", "b", "a", "c"]))
    with pytest.raises(DataError, match="two classes have the name 'a'"):
        stored(tmp_path / "mine.npz", tmp_path / "out")


def test_options_of_folders_are_refused(tmp_path):
    write_npz(tmp_path / "mine.npz")
    with pytest.raises(ConfigError, match="--test-list is for a folder of images"):
        open_source(str(tmp_path / "mine.npz"), Options(test_list=tmp_path / "test.csv"))
    write_npz(tmp_path / "mine.npz", test_images=np.zeros((1, 8, 8, 3), np.uint8), test_labels=[0])
    with pytest.raises(ConfigError, match="has test_images"):
        open_source(str(tmp_path / "mine.npz"), Options(test_fraction=0.5))


def test_a_file_that_is_no_npz(tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"PK but no more")
    with pytest.raises(DataError):
        open_source(str(tmp_path / "mine.npz"), Options())


def test_a_npz_that_is_damaged_within(tmp_path):
    path = tmp_path / "mine.npz"
    images = np.random.default_rng(0).integers(0, 4, (600, 16, 16, 3), dtype=np.uint8)
    np.savez_compressed(path, images=images, labels=np.arange(600) % 3)
    whole = path.read_bytes()
    for place in (len(whole) // 3, len(whole) // 2):
        path.write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
        with pytest.raises(DataError, match="is damaged"):
            stored(path, tmp_path / "out")
        assert [one.name for one in tmp_path.iterdir()] == ["mine.npz"]
    np.save(tmp_path / "one.npy", images)
    (tmp_path / "one.npy").rename(path)
    with pytest.raises(DataError, match="cannot be read"):
        open_source(str(path), Options())
