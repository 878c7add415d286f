"""Both formats open in the plain readers of their own projects; options; determinism."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.convert import Options, convert, options, tar
from pipelines.convert.images import Target
from pipelines.convert.open import open_source
from pipelines.errors import ConfigError, DataError, ResourceError
from pipelines.sources import Source, SourceSplit, array_chunks
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.image_files import write_folder
from tests.installed import INSTALLED_FORMATS, needs
from tests.reading import check, decode, read_tars

BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


def arrays(count: int = 700, size: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return images, random.integers(-1, 12, count)


def source(images: np.ndarray, labels: np.ndarray, **more) -> Source:
    split = SourceSplit(
        len(images), images.shape[1], lambda: array_chunks(images, labels, "memory"), kept=True
    )
    names = [f"kind {number}" for number in range(12)]
    return Source(name="memory", class_names=names, splits={"train": split}, resize="crop", **more)


@pytest.fixture(scope="module", params=["raw", "jpeg"])
def store(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("stores") / request.param
    images, labels = arrays(300, 16)
    quality = None if request.param == "raw" else 90
    options = Options(formats=INSTALLED_FORMATS, quality=quality, workers=1)
    convert(source(images, labels), out, options)
    return open_store(out)


@needs("ffcv")
def test_the_beton_opens_in_a_plain_loader(store):
    from ffcv.loader import Loader, OrderOption

    loader = Loader(
        str(store.beton("train")), 64, num_workers=1, order=OrderOption.SEQUENTIAL, drop_last=False
    )
    seen = 0
    raw = store.splits["train"].encoding == "raw"
    for images, labels, indices in loader:
        for image, label, index in zip(images, labels, indices, strict=True):
            assert (int(label), int(index)) == (store.labels("train")[seen], seen)
            difference = np.asarray(image, np.int64) - store.image("train", seen)
            assert np.abs(difference).max() <= (0 if raw else 16)  # ffcv decodes with a fast DCT
            seen += 1
    assert seen == 300


@needs("dali")
def test_the_shards_open_in_plain_dali(store):
    from nvidia.dali import fn as dali_fn
    from nvidia.dali import pipeline_def

    paths = store.shards("train")
    indices = [str(path.with_suffix(".idx")) for path in paths]
    raw = store.splits["train"].encoding == "raw"

    @pipeline_def(batch_size=100, num_threads=1, device_id=None)
    def read():
        image, kind, index = dali_fn.readers.webdataset(
            paths=[str(path) for path in paths],
            index_paths=indices,
            ext=["ppm" if raw else "jpg", "cls", "idx"],
            missing_component_behavior="error",
        )
        return dali_fn.decoders.image(image, device="cpu"), kind, index

    pipeline = read()
    pipeline.build()
    for seen in range(0, 300, 100):
        images, kinds, numbers = pipeline.run()
        for place in range(100):
            number = seen + place
            assert int(bytes(numbers.at(place))) == number
            assert int(bytes(kinds.at(place))) == store.labels("train")[number]
            difference = images.at(place).astype(np.int64) - store.image("train", number)
            assert np.abs(difference).max() <= (0 if raw else 16)


@needs("dali")
def test_dalis_own_index_is_ours(store, tmp_path):
    import wds2idx

    path = store.shards("train")[0]
    with wds2idx.IndexCreator(str(path), str(tmp_path / "x.idx"), verbose=False) as creator:
        creator.create_index()
    assert (tmp_path / "x.idx").read_text() == path.with_suffix(".idx").read_text()


def test_both_formats_hold_the_same(store):
    images, labels = arrays(300, 16)
    raw = store.splits["train"].encoding == "raw"
    check(store, "train", images if raw else None, labels.tolist())


def test_many_shards_are_one_split(tmp_path, monkeypatch):
    monkeypatch.setattr(tar, "SHARD_BYTES", 1_000_000)
    images, labels = arrays(1700)
    convert(source(images, labels), tmp_path / "out", Options(formats=("dali",)))
    store = open_store(tmp_path / "out")
    assert len(store.shards("train")) > 2
    check(store, "train", images, labels.tolist())
    assert verify(store.path).problems == []


@needs("ffcv")
def test_a_store_of_beton_alone_is_read_without_ffcv(tmp_path):
    images, labels = arrays()
    convert(source(images, labels), tmp_path / "out", Options(formats=("ffcv",)))
    store = open_store(tmp_path / "out")
    assert store.formats == ("ffcv",)
    assert all((store.image("train", place) == images[place]).all() for place in (0, 350, 699))
    assert verify(store.path).problems == []
    with pytest.raises(DataError, match="no dali files"):
        store.shards("train")


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_the_same_images_give_the_same_bytes_whatever_the_number_of_workers(tmp_path):
    pets = write_folder(tmp_path / "pets", classes=4, per_class=40)
    for workers in (1, 3):
        options = Options(formats=INSTALLED_FORMATS, size=40, quality=80, workers=workers)
        convert(open_source(str(pets), Options()), tmp_path / f"{workers}", options)
    assert digests(tmp_path / "1") == digests(tmp_path / "3")


def test_small_images_are_stored_as_pixels_and_large_ones_as_jpeg(tmp_path):
    pets = write_folder(tmp_path / "pets", per_class=2)
    for size, quality, encoding in [
        (96, None, "raw"), (97, None, "jpeg"), (16, 50, "jpeg"), (100, 0, "raw"),
    ]:  # fmt: skip
        out = tmp_path / f"{size}-{quality}"
        options = Options(size=size, quality=quality, formats=("dali",))
        convert(open_source(str(pets), Options(test_fraction=0)), out, options)
        info = open_store(out).splits["train"]
        assert (info.encoding, info.height, info.width) == (encoding, size, size)


def test_arrays_are_resized_too(tmp_path):
    images, labels = arrays(40, 8)
    convert(source(images, labels), tmp_path / "out", Options(size=12, formats=("dali",)))
    store = open_store(tmp_path / "out")
    wanted = Image.fromarray(images[7]).resize((12, 12), BICUBIC)
    np.testing.assert_array_equal(decode(read_tars(store, "train")[0][7]), np.asarray(wanted))


def test_the_interpolation_is_that_of_the_option_and_recorded_if_it_is_not_bicubic(tmp_path):
    images, labels = arrays(80, 8)
    for method, resample in (("bicubic", BICUBIC), ("bilinear", BILINEAR)):
        out = tmp_path / method
        convert(source(images, labels), out, Options(size=12, interpolation=method, workers=2))
        wanted = Image.fromarray(images[70]).resize((12, 12), resample)
        np.testing.assert_array_equal(open_store(out).image("train", 70), np.asarray(wanted))
        assert open_store(out).manifest.interpolation == method
        # Without the entry a store has the bytes that earlier versions wrote.
        assert ("interpolation" in json.loads((out / "dataset.json").read_text())) == (
            method == "bilinear"
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"formats": ("zip",)}, "zip"),
        ({"formats": ()}, "no format"),
        ({"size": 0}, "size"),
        ({"size": 9999}, "size"),
        ({"resize": "stretch"}, "stretch"),
        ({"interpolation": "nearest"}, "use bicubic or bilinear"),
        ({"quality": 101}, "101"),
        ({"quality": "best"}, "best"),
        ({"workers": 0}, "workers"),
        ({"on_error": "ignore"}, "ignore"),
    ],
)
def test_options_that_cannot_be(wrong, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        convert(source(*arrays(3)), tmp_path / "out", Options(**wrong))
    assert list(tmp_path.iterdir()) == []


def test_tars_alone_are_written_unless_another_format_is_given(tmp_path, monkeypatch):
    convert(source(*arrays(3)), tmp_path / "out")
    assert open_store(tmp_path / "out").formats == ("dali",)
    assert not list((tmp_path / "out").glob("*.beton"))
    monkeypatch.setattr(options, "import_problem", lambda package: None)
    assert Options(formats="dali,ffcv").formats == ("ffcv", "dali")


def test_ffcv_that_is_not_installed_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "import_problem", lambda package: "is not installed")
    with pytest.raises(ConfigError, match="not installed"):
        convert(source(*arrays(3)), tmp_path / "other", Options(formats=("ffcv",)))


def test_a_source_without_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="no training images"):
        convert(source(*arrays(0)), tmp_path / "out")


def test_a_worker_that_dies_is_reported(tmp_path, monkeypatch):
    """A worker that ends by itself stops the conversion with exit code 5 and no store."""
    pets = write_folder(tmp_path / "pets", classes=2, per_class=40)
    program = "import os; os.kill(os.getpid(), 9)"
    start = subprocess.Popen

    def killed(command, **options):
        return start([sys.executable, "-c", program], **options)

    monkeypatch.setattr("pipelines.convert.pool.subprocess.Popen", killed)
    with pytest.raises(ResourceError, match="signal 9") as caught:
        raw = open_source(str(pets), Options())
        convert(raw, tmp_path / "out", Options(formats=("dali",), workers=2))
    assert caught.value.exit_code == 5
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]
    assert caught.value.__context__ is None, "it keeps what was sent"


def test_workers_end_with_the_process_they_work_for(tmp_path):
    from pipelines.convert.pool import Pool

    pets = write_folder(tmp_path / "pets", per_class=20)
    raw = open_source(str(pets), Options())
    with Pool(2) as pool:
        assert len(list(pool.map(raw.splits["train"].chunks(), Target(8, "crop", None)))) > 2
    assert [worker.process.poll() for worker in pool._workers] == [0, 0]


def test_conversion_needs_no_torch_without_ffcv(tmp_path):
    pets = write_folder(tmp_path / "pets")
    program = (
        "import sys; from fastssl.api import convert;"
        "from fastssl.conversion import verify; from pathlib import Path;"
        f"convert({str(pets)!r}, Path({str(tmp_path / 'out')!r}), formats=('dali',));"
        f"assert not verify(Path({str(tmp_path / 'out')!r})).problems;"
        "assert not {'torch', 'numba', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
