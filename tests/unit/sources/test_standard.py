"""Every standard source, from files in its publisher's layout, pixel by pixel in both formats."""

import io
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.convert import Options, convert
from pipelines.convert.ensure import ensure_store
from pipelines.convert.open import open_source
from pipelines.datasets import DATASETS
from pipelines.errors import ConfigError, DataError, ResourceError
from pipelines.sources import SourceSplit, array_chunks
from pipelines.sources.published import download
from pipelines.sources.unpickle import unpickle
from pipelines.store.store import Store, open_store
from tests import publishers
from tests.installed import INSTALLED_FORMATS
from tests.reading import check


def opened(name: str, root: Path, **more) -> object:
    return open_source(name, Options(root=root, **more))


def stored(source, out: Path, **options) -> Store:
    convert(source, out, Options(formats=INSTALLED_FORMATS, **options))
    return open_store(out)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(name, tmp_path, monkeypatch):
    made = publishers.write_cifar(tmp_path, name)
    publishers.publish(monkeypatch, name, next(tmp_path.iterdir()))
    store = stored(opened(name, tmp_path), tmp_path / "out")
    assert (store.name, store.classes) == (name, DATASETS[name].classes)
    assert store.class_names[3] == "kind 3"
    assert store.mean == DATASETS[name].mean
    for split, (pixels, labels) in made.items():
        check(store, split, pixels, labels.tolist())
    first = "data_batch_1" if name == "cifar10" else "train"
    assert store.source_paths("train")[:2] == [f"{first}:0", f"{first}:1"]


def test_the_root_may_be_the_folder_itself(tmp_path, monkeypatch):
    made = publishers.write_cifar(tmp_path, "cifar100")
    folder = tmp_path / "cifar-100-python"
    publishers.publish(monkeypatch, "cifar100", folder)
    assert opened("cifar100", folder).splits["train"].count == len(made["train"][1])


@pytest.mark.parametrize("extra", [True, False])
def test_svhn(extra, tmp_path, monkeypatch):
    made = publishers.write_svhn(tmp_path / "raw")
    publishers.publish(monkeypatch, "svhn", tmp_path / "raw")
    if not extra:
        (tmp_path / "raw" / "extra_32x32.mat").unlink()
    store = stored(opened("svhn", tmp_path / "raw", no_extra=not extra), tmp_path / "out")
    parts = ["train", "extra"] if extra else ["train"]
    pixels, labels = (np.concatenate([made[part][n] for part in parts]) for n in (0, 1))
    check(store, "train", pixels, labels.tolist())
    check(store, "test", made["test"][0], made["test"][1].tolist())


def test_stl10_has_the_labeled_images_first(tmp_path, monkeypatch):
    made = publishers.write_stl10(tmp_path)
    publishers.publish(monkeypatch, "stl10", tmp_path / "stl10_binary")
    store = stored(opened("stl10", tmp_path), tmp_path / "out")
    pixels, labels = (np.concatenate([made[p][n] for p in ("train", "unlabeled")]) for n in (0, 1))
    check(store, "train", pixels, labels.tolist())
    check(store, "test", made["test"][0], made["test"][1].tolist())
    assert store.splits["train"].labeled == len(made["train"][1])


def as_jpeg(path: Path, size: int) -> np.ndarray:
    with Image.open(path) as photo:
        small = photo.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=95)
    return np.asarray(Image.open(file).convert("RGB"))


@pytest.mark.parametrize("flat", [True, False])
def test_imagenet(flat, tmp_path):
    root = tmp_path / "raw"
    truth = publishers.write_ilsvrc(root, flat=flat)
    store = stored(opened("imagenet", root), tmp_path / "out", workers=2)
    names = sorted(publishers.WNIDS)
    assert store.class_names == names
    assert (store.splits["train"].height, store.splits["test"].height) == (256, 224)
    assert {info.encoding for info in store.splits.values()} == {"jpeg"}
    for split, folder, size in (("train", "train", 256), ("test", "val", 224)):
        paths = [root / path for path in store.source_paths(split)]
        kinds = [names.index(path.parent.name) for path in paths] if folder == "train" else None
        if folder == "val":
            kinds = [names.index(truth[int(path.stem[-8:]) - 1]) for path in paths]
        check(store, split, np.stack([as_jpeg(path, size) for path in paths]), kinds)


def test_imagenet_says_what_is_missing(tmp_path):
    with pytest.raises(DataError, match="train is missing"):
        opened("imagenet", tmp_path)
    publishers.write_ilsvrc(tmp_path / "flat", flat=True)
    kit = tmp_path / "flat/ILSVRC2012_devkit_t12/data"
    truth = kit / "ILSVRC2012_validation_ground_truth.txt"
    published = truth.read_text()
    truth.write_text("one\n" + published)
    with pytest.raises(DataError, match="is not as published: ValueError"):
        opened("imagenet", tmp_path / "flat")
    truth.write_text("9999\n" + published)
    with pytest.raises(DataError, match="is not as published: KeyError 9999"):
        opened("imagenet", tmp_path / "flat")
    truth.write_text(published)
    (kit / "meta.mat").write_bytes(b"no matrix")
    with pytest.raises(DataError, match="is not as published"):
        opened("imagenet", tmp_path / "flat")
    (kit / "meta.mat").unlink()
    with pytest.raises(DataError, match="ground truth is missing"):
        opened("imagenet", tmp_path / "flat")


def test_digits_are_the_digits_of_scikit_learn(data):
    from sklearn.datasets import load_digits

    store = open_store(data / "digits")
    entry, raw = DATASETS["digits"], load_digits()
    assert (store.splits["train"].count, store.splits["test"].count) == (entry.train, entry.test)
    assert np.bincount(store.labels("test")).tolist() == [36] * 10
    train, test = (
        [int(p.split(":")[1]) for p in store.source_paths(split)] for split in ("train", "test")
    )
    assert sorted(train + test) == list(range(1797))
    for place in (0, 700, 1436):
        grey = np.rint(raw.images[train[place]] * (255 / 16)).astype(np.uint8)
        big = Image.fromarray(grey).resize((16, 16), Image.Resampling.BICUBIC).convert("RGB")
        np.testing.assert_array_equal(store.image("train", place), np.asarray(big))
        assert store.labels("train")[place] == raw.target[train[place]]
    pixels = np.stack([store.image("train", place) for place in range(entry.train)]) / 255
    np.testing.assert_allclose(pixels.mean((0, 1, 2)), entry.mean, atol=1e-4)
    np.testing.assert_allclose(pixels.std((0, 1, 2)), entry.std, atol=1e-4)


def test_a_missing_file_is_named_with_its_checksum_and_what_to_do(tmp_path):
    with pytest.raises(DataError) as caught:
        opened("cifar10", tmp_path)
    assert "cifar-10-batches-py" in caught.value.what
    assert DATASETS["cifar10"].files["batches.meta"] in caught.value.what or (
        DATASETS["cifar10"].files["data_batch_1"] in caught.value.what
    )
    assert "--download" in caught.value.fix


class Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def test_a_wrong_file_is_refused_before_it_is_unpickled(tmp_path, monkeypatch):
    publishers.write_cifar(tmp_path, "cifar10")
    folder = tmp_path / "cifar-10-batches-py"
    publishers.publish(monkeypatch, "cifar10", folder)
    monkeypatch.setattr("pipelines.sources.cifar.unpickle", lambda *_: pytest.fail("unpickled"))
    (folder / "batches.meta").write_bytes(pickle.dumps(Evil()))
    (folder / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="not the published file"):
        opened("cifar10", tmp_path)


def test_no_code_runs_out_of_a_pickle_even_where_the_checksum_is_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (Evil(), {b"data": Evil()}, {b"data": np.array([Evil()], object)}):
        with pytest.raises(DataError, match="system"):
            unpickle(pickle.dumps(content), "file")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_of_data_is_read(protocol):
    content = {b"data": np.arange(6, dtype=np.uint8), "labels": [1, 2], b"names": [b"a"]}
    found = unpickle(pickle.dumps(content, protocol), "file")
    assert found[b"data"].tolist() == list(range(6))
    assert (found[b"labels"], found[b"names"]) == ([1, 2], [b"a"])


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps([1]), pickle.dumps({1: 2})[:-3]])
def test_a_damaged_pickle_is_an_error_of_the_data(data):
    with pytest.raises(DataError):
        unpickle(data, "file")


def test_imagenet_is_never_downloaded(tmp_path):
    with pytest.raises(ConfigError, match="terms"):
        download(DATASETS["imagenet"], tmp_path)


@pytest.fixture
def fetched(monkeypatch):
    """What torchvision is asked to fetch; its datasets, which would read it, are not made."""
    from torchvision import datasets
    from torchvision.datasets import utils

    asked = []

    def note(url, root, filename=None, md5=None):
        asked.append((url.rsplit("/", 1)[1], md5))

    for name in ("download_url", "download_and_extract_archive"):
        monkeypatch.setattr(utils, name, note)
    for kind in (datasets.CIFAR10, datasets.CIFAR100, datasets.STL10, datasets.SVHN):
        monkeypatch.setattr(kind, "__init__", lambda *_, **__: pytest.fail("a dataset is made"))
    return asked


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}),
        ("cifar100", {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}),
        ("stl10", {"stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"}),
        ("svhn", dict(DATASETS["svhn"].files)),
    ],
)
def test_a_download_fetches_the_published_files_and_opens_none(name, files, fetched, tmp_path):
    download(DATASETS[name], tmp_path / "raw")
    assert sorted(fetched) == sorted(files.items())


def test_svhn_is_fetched_without_its_extra_images(fetched, tmp_path):
    download(DATASETS["svhn"], tmp_path, extra=False)
    assert [file for file, _ in fetched] == ["train_32x32.mat", "test_32x32.mat"]


def test_what_is_there_is_not_fetched_again(fetched, tmp_path, monkeypatch):
    publishers.write_cifar(tmp_path, "cifar10")
    publishers.publish(monkeypatch, "cifar10", tmp_path / "cifar-10-batches-py")
    download(DATASETS["cifar10"], tmp_path)
    assert not fetched
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"half")
    download(DATASETS["cifar10"], tmp_path)
    assert len(fetched) == 1


def test_what_was_downloaded_is_read(tmp_path, monkeypatch):
    from torchvision.datasets import utils

    publishers.write_cifar(tmp_path / "there", "cifar10")
    publishers.publish(monkeypatch, "cifar10", tmp_path / "there" / "cifar-10-batches-py")

    def fetch(url, root, md5):
        publishers.write_cifar(Path(root), "cifar10")

    monkeypatch.setattr(utils, "download_and_extract_archive", fetch)
    source = opened("cifar10", tmp_path / "raw", download=True)
    assert source.splits["test"].count == 7


def test_a_download_that_fails_says_where_the_data_is(tmp_path, monkeypatch):
    from torchvision.datasets import utils

    def fail(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(utils, "download_url", fail)
    with pytest.raises(ResourceError, match="no network") as caught:
        opened("svhn", tmp_path, download=True)
    assert "housenumbers" in caught.value.fix


@pytest.mark.parametrize("quality", [101, -3])
def test_a_quality_that_cannot_be_names_the_flag(quality):
    with pytest.raises(ConfigError) as caught:
        Options(quality=quality)
    assert caught.value.fix == "use --quality 0 for raw pixels, or 1 to 100 for JPEG"


def test_names_and_flags_that_do_not_go_together(tmp_path):
    with pytest.raises(DataError, match="did you mean 'cifar10'"):
        open_source("cifr10", Options())
    with pytest.raises(ConfigError, match="--labels"):
        open_source("digits", Options(labels=tmp_path / "x.csv"))
    with pytest.raises(ConfigError, match="--root"):
        open_source(str(tmp_path), Options(root=tmp_path))


def toy(entry, root, options):
    """Return a dataset of one's own: the reader function of an entry."""
    images = np.full((4, entry.size, entry.size, 3), 7, np.uint8)
    split = SourceSplit(4, entry.size, lambda: array_chunks(images, np.arange(4), "toy"), kept=True)
    return entry.source(list("abcd"), {"train": split, "test": split})


def test_a_new_data_set_is_one_entry_and_one_reader_function(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    entry = replace(DATASETS["digits"], name="toy", classes=4, reader=f"{__name__}:toy")
    monkeypatch.setitem(DATASETS._items, "toy", entry)
    store = ensure_store("toy")
    assert (store.path, store.classes, store.manifest.terms) == (
        tmp_path / "toy",
        4,
        entry.terms,
    )
    assert store.image("test", 3).max() == 7


def test_the_table_of_data_sets_imports_no_library():
    program = (
        "import sys; from pipelines.datasets import DATASETS;"
        "assert not {'torch', 'numpy', 'scipy', 'sklearn', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
