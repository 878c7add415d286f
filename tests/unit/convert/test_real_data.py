"""The real CIFAR-10 and real photographs, where they are: converted, verified, read back."""

import pickle
import tarfile
from dataclasses import replace
from hashlib import md5
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from fastssl.api import convert
from pipelines.convert import Options
from pipelines.convert import convert as write_store
from pipelines.convert.open import open_source
from pipelines.datasets import DATASETS
from pipelines.sources import cifar
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.image_files import noise
from tests.reading import check, read_beton, read_tars
from tests.real_data import CIFAR10, PHOTOS, needs_cifar10, needs_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(folder, filter="data")
    return folder / "photos"


@needs_cifar10
def test_a_batch_of_the_real_cifar10(tmp_path):
    """Unpacking all of it takes a while: the first batch of the archive is enough here."""
    with tarfile.open(CIFAR10, "r|xz") as archive:
        for member in archive:
            archive.extract(member, tmp_path, filter="data")
            if member.name.endswith("data_batch_4"):
                break
    folder = tmp_path / "cifar-10-batches-py"
    # The same batch stands for the test set, whose file comes later in the archive.
    (folder / "test_batch").hardlink_to(folder / "data_batch_4")
    names = pickle.dumps({b"label_names": [b"%d" % number for number in range(10)]})
    (folder / "batches.meta").write_bytes(names)
    entry = DATASETS["cifar10"]
    batch = entry.files["data_batch_4"]
    files = {"data_batch_4": batch, "test_batch": batch, "batches.meta": md5(names).hexdigest()}
    raw = cifar.source(replace(entry, files=files), tmp_path, Options())
    write_store(raw, tmp_path / "out")
    assert verify(tmp_path / "out").problems == []
    with _quiet():
        content = pickle.loads((folder / "data_batch_4").read_bytes(), encoding="bytes")
    pixels = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    check(open_store(tmp_path / "out"), "train", pixels, content[b"labels"])


@pytest.mark.slow
@needs_cifar10
def test_the_real_cifar10(tmp_path):
    with tarfile.open(CIFAR10) as archive:
        archive.extractall(tmp_path, filter="data")
    store = convert("cifar10", tmp_path / "out", root=tmp_path, formats="ffcv,dali")
    assert store.class_names[:3] == ["airplane", "automobile", "bird"]
    assert verify(store.path).problems == []
    for split, names in {
        "train": [f"data_batch_{number}" for number in range(1, 6)],
        "test": ["test_batch"],
    }.items():
        pixels, labels = [], []
        for name in names:
            with _quiet():
                content = pickle.loads(
                    (tmp_path / "cifar-10-batches-py" / name).read_bytes(), encoding="bytes"
                )
            pixels.append(content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels += content[b"labels"]
        images, kinds, places = read_beton(store, split)
        assert (kinds, places) == (labels, list(range(len(labels))))
        wanted = np.concatenate(pixels)
        found = np.frombuffer(b"".join(images), np.uint8).reshape(wanted.shape)
        np.testing.assert_array_equal(found, wanted)
        head = b"P6\n32 32\n255\n"
        by_tar = read_tars(store, split)
        assert by_tar[0] == [head + image for image in images]
        assert by_tar[1:] == (labels, list(range(len(labels))))


def _quiet():
    import warnings

    return warnings.catch_warnings(action="ignore")


@needs_photos
def test_real_photographs_as_pixels(photos, tmp_path):
    raw = open_source("imagenet", Options(root=photos / "ilsvrc"))
    out = tmp_path / "out"
    write_store(raw, out, Options(size=64, quality=0, workers=2))
    store = open_store(out)
    assert (store.splits["train"].count, store.splits["test"].count) == (600, 150)
    assert verify(out).problems == []
    paths = [photos / "ilsvrc" / path for path in store.source_paths("test")]
    names = store.class_names
    pixels = []
    for path in paths:
        with Image.open(path) as photo:
            whole = photo.convert("RGB")
            pixels.append(np.asarray(whole.resize((64, 64), Image.Resampling.BICUBIC)))
    check(store, "test", np.stack(pixels), [names.index(path.parent.name) for path in paths])


@needs_photos
def test_real_photographs_of_all_sizes_as_jpeg(photos, tmp_path):
    rows = "".join(
        f"{path.name},{number % 2}\n"
        for number, path in enumerate(sorted((photos / "large").iterdir()))
    )
    (tmp_path / "labels.csv").write_text(rows)
    own = Options(labels=tmp_path / "labels.csv", test_fraction=0.25)
    raw = open_source(str(photos / "large"), own)
    write_store(raw, tmp_path / "out", Options(size=128, workers=2))
    store = open_store(tmp_path / "out")
    assert sum(info.count for info in store.splits.values()) == 120
    assert verify(store.path).problems == []
    for split in store.splits:
        check(store, split, None, store.labels(split).tolist())


def _peak(source: Path, out: Path) -> int:
    """Convert in another process; return the most memory that it and its workers had."""
    import subprocess
    import sys

    program = (
        "import sys; from pathlib import Path; from fastssl.api import convert;"
        "convert(sys.argv[1], Path(sys.argv[2]), size=256, workers=2)"
    )
    process = psutil.Popen(
        [sys.executable, "-c", program, str(source), str(out)], stderr=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        total = 0
        for one in [process, *process.children(recursive=True)]:
            try:
                total += one.memory_info().rss
            except psutil.Error:
                continue
        peak = max(peak, total)
        try:
            process.wait(0.05)
        except psutil.TimeoutExpired:
            continue
    assert process.returncode == 0
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_photographs(tmp_path):
    random = np.random.default_rng(0)
    pictures = []
    for number in range(20):
        photo = noise((500, 375), random)
        speckled = np.asarray(photo).astype(int) + random.integers(-20, 21, (375, 500, 3))
        path = tmp_path / f"{number}.jpg"
        Image.fromarray(speckled.clip(0, 255).astype(np.uint8)).save(path, quality=95)
        pictures.append(path)
    peaks = {}
    for count in (2_000, 20_000):
        source = tmp_path / str(count)
        for label in range(2):
            (source / str(label)).mkdir(parents=True)
        for number in range(count):
            link = source / str(number % 2) / f"{number}.jpg"
            link.hardlink_to(pictures[number % 20])
        peaks[count] = _peak(source, tmp_path / f"out{count}")
    assert peaks[20_000] - peaks[2_000] < 300e6, peaks
    print(peaks)
