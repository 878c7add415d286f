"""Stores whose checksums agree and whose tables or images lie: refused before they are decoded."""

import io
import json
import shutil
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from pipelines.errors import DataError
from pipelines.readers import READERS
from pipelines.store import index, manifest
from pipelines.store.records import jpeg_shape
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.installed import INSTALLED_FORMATS
from tests.small_stores import make_store

NAMES = [name for name in READERS if READERS[name].installed]
SIZE = 32


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    raw = make_store(folder / "raw", count=24, size=SIZE, formats=INSTALLED_FORMATS)
    jpeg = make_store(folder / "jpeg", count=24, size=SIZE, quality=95, formats=INSTALLED_FORMATS)
    return {"raw": raw.path, "jpeg": jpeg.path}


@pytest.fixture
def copy(sound, tmp_path):
    return lambda kind: shutil.copytree(sound[kind], tmp_path / "crafted")


def seal(folder, change=lambda content: None):
    """Write a manifest that agrees with the files, after another change of it."""
    content = json.loads((folder / manifest.NAME).read_bytes())
    for name, entry in content["files"].items():
        path = folder / name
        entry |= {"size": path.stat().st_size, "sha256": manifest.digest(path)}
    change(content)
    (folder / manifest.NAME).write_bytes(manifest.render(content))


def seal_sizes(folder):
    """Write a manifest that agrees with the index and the sizes of the files."""
    content = json.loads((folder / manifest.NAME).read_bytes())
    for name, entry in content["files"].items():
        entry["size"] = (folder / name).stat().st_size
    content["files"]["train.npy"]["sha256"] = manifest.digest(folder / "train.npy")
    (folder / manifest.NAME).write_bytes(manifest.render(content))


def put(folder, row, image):
    """Replace an image in every format, checksum included."""
    records = np.load(folder / "train.npy")
    assert len(image) <= records["size"][row], "no room for it"
    for file, column in (("train-00000.tar", "offset"), ("train.beton", "beton")):
        if (folder / file).exists():
            data = bytearray((folder / file).read_bytes())
            start = int(records[column][row])
            data[start : start + len(image)] = image
            (folder / file).write_bytes(data)
    records["size"][row], records["crc"][row] = len(image), zlib.crc32(image)
    np.save(folder / "train.npy", records)
    seal(folder)


def as_jpeg(size=(SIZE, SIZE), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "JPEG", **options)
    return file.getvalue()


def read_all(folder, name):
    reader = READERS[name].open(open_store(folder), "train")
    try:
        return [np.array(images) for images in reader.stream([np.arange(8), np.arange(8, 24)])]
    finally:
        reader.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "image",
    [
        as_jpeg((2 * SIZE, 2 * SIZE)),
        as_jpeg((SIZE, SIZE - 1)),
        as_jpeg(mode="L"),
        as_jpeg(mode="CMYK"),
        as_jpeg().replace(b"\x08\x00\x20\x00\x20", b"\x08\xff\xff\xff\xff"),
        b"",
        bytes(100),
        as_jpeg()[:20],
    ],
    ids=["larger", "smaller", "gray", "cmyk", "bomb", "empty", "zeros", "cut"],
)
def test_every_reader_refuses_an_image_of_another_shape_or_kind(copy, name, image):
    folder = copy("jpeg")
    put(folder, 5, image)
    with pytest.raises(DataError) as caught:
        read_all(folder, name)
    assert "train.npy is damaged" in caught.value.what or "image 5 of" in caught.value.what


@pytest.mark.parametrize("name", NAMES)
def test_every_reader_refuses_an_image_whose_header_fits_and_whose_data_is_missing(copy, name):
    folder, image = copy("jpeg"), as_jpeg()
    put(folder, 5, image[: image.index(b"\xff\xda") + 4])
    with pytest.raises(DataError):
        read_all(folder, name)
    assert "train image 5" in verify(folder).problems[0]
    with pytest.raises(DataError, match="image 5 of split train is damaged"):
        open_store(folder).image("train", 5)


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("column", "value"),
    [("beton", 2**64 - 1), ("offset", 2**63), ("size", 2**32 - 1), ("shard", 9), ("size", 0)],
)
def test_an_index_that_leads_out_of_its_files_is_refused(copy, kind, name, column, value):
    folder = copy(kind)
    records = np.load(folder / "train.npy")
    records[column][3] = value
    np.save(folder / "train.npy", records)
    seal(folder)
    if column == "beton" and "ffcv" not in open_store(folder).formats:
        pytest.skip("no .beton here")
    with pytest.raises(DataError, match=r"train\.npy is damaged"):
        READERS[name].open(open_store(folder), "train")


def test_an_empty_file_among_the_shards_is_refused(copy):
    folder = copy("raw")
    (folder / "empty.tar").touch()

    def add(content):
        content["files"]["empty.tar"] = {"size": 0, "sha256": ""}
        content["splits"]["train"]["shards"].append("empty.tar")

    seal(folder, add)
    with pytest.raises(DataError, match=r"train images in .* cannot be read"):
        open_store(folder).image("train", 0)


def test_images_that_share_their_bytes_are_refused(copy):
    folder = copy("raw")
    records = np.load(folder / "train.npy")
    for column in ("offset", "beton", "crc"):
        records[column] = records[column][0]
    tar = folder / "train-00000.tar"
    tar.write_bytes(tar.read_bytes()[: int(records["offset"][0] + records["size"][0])])
    np.save(folder / "train.npy", records)
    seal(folder)
    with pytest.raises(DataError, match="leads out of a tar file"):
        open_store(folder).records("train")


@pytest.mark.parametrize("name", NAMES)
def test_an_image_beyond_four_gigabytes_is_read(copy, name):
    folder, far = copy("raw"), 5 << 30
    image = bytes(range(256)) * (SIZE * SIZE * 3 // 256)
    records = np.load(folder / "train.npy")
    for path, column in ((folder / "train-00000.tar", "offset"), (folder / "train.beton", "beton")):
        if path.exists():
            with path.open("r+b") as file:  # sparse: takes no room on the disk
                file.seek(far)
                file.write(image)
            records[column][3] = far
    records["crc"][3] = zlib.crc32(image)
    np.save(folder / "train.npy", records)
    seal_sizes(folder)
    assert np.concatenate(read_all(folder, name))[3].tobytes() == image


def test_an_image_at_the_very_end_of_its_file_is_accepted(copy):
    folder = copy("raw")
    records = np.load(folder / "train.npy")
    size = int(records["size"][0])
    for path, column in ((folder / "train-00000.tar", "offset"), (folder / "train.beton", "beton")):
        if path.exists():
            with path.open("ab") as file:
                file.write(bytes(size))
            records[column][3] = path.stat().st_size - size
    records["crc"][3] = zlib.crc32(bytes(size))
    np.save(folder / "train.npy", records)
    seal(folder)
    assert not open_store(folder).image("train", 3).any()
    assert not np.concatenate(read_all(folder, NAMES[0]))[3].any()


@pytest.mark.parametrize(
    "change",
    [
        {"height": manifest.LARGEST_SIDE + 1},
        {"width": 0},
        {"count": 0},
        {"count": 10**9},
        {"count": True},
        {"height": 32.0},
        {"encoding": "png"},
        {"shards": []},
        {"shards": ["../train-00000.tar"]},
    ],
    ids=str,
)
def test_values_of_a_split_that_no_conversion_writes_are_refused(copy, change):
    folder = copy("raw")
    seal(folder, lambda content: content["splits"]["train"].update(change))
    with pytest.raises(DataError, match="not as `convert` writes it"):
        open_store(folder)


def test_pixels_are_not_taken_for_a_jpeg_nor_a_jpeg_for_pixels(copy):
    folder = copy("raw")
    seal(folder, lambda content: content["splits"]["train"].update(encoding="jpeg"))
    for name in NAMES:
        with pytest.raises(DataError, match=r"no JPEG of the shape \(32, 32, 3\)"):
            read_all(folder, name)
    shutil.rmtree(folder)
    folder = copy("jpeg")
    seal(folder, lambda content: content["splits"]["train"].update(encoding="raw"))
    for name in NAMES:
        with pytest.raises(DataError, match="other sizes than the split"):
            read_all(folder, name)


@pytest.mark.parametrize("rows", ["0,train,0,a\n", "5,train,0,a\n", "0,nowhere,0,a\n", "\udcff"])
def test_a_list_of_sources_that_is_not_complete_is_refused(copy, rows):
    folder = copy("raw")
    text = ",".join(index.HEADER) + "\n" + rows
    (folder / index.NAME).write_bytes(text.encode(errors="surrogateescape"))
    seal(folder)
    with pytest.raises(DataError, match=r"index\.csv"):
        open_store(folder).source_paths("train")
    assert verify(folder).problems


def test_a_line_without_an_end_is_not_read_whole(copy):
    folder = copy("raw")
    with (folder / index.NAME).open("ab") as file:
        file.write(b"0,train,0,")
        file.truncate(2**26)  # a hole of zeros, which takes no room on the disk
    seal(folder)
    store = open_store(folder)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"index\.csv"):
        store.source_paths("train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_class_names_may_be_anything_that_a_folder_may_be_called(copy):
    folder = copy("raw")
    names = ["\udcff", "\x1b[31m", "", "a" * 300]
    seal(folder, lambda content: content.update(class_names=names))
    assert open_store(folder).class_names == names


def test_a_huge_manifest_is_not_read(copy, monkeypatch):
    folder = copy("raw")
    monkeypatch.setattr("pipelines.store.store.MOST_MANIFEST", 100)
    with pytest.raises(DataError, match=r"dataset\.json is larger than 100 bytes"):
        open_store(folder)


def test_the_shape_of_a_jpeg_is_read_from_its_header():
    for options in ({}, {"progressive": True}, {"quality": 100}, {"comment": b"x" * 999}):
        assert jpeg_shape(memoryview(as_jpeg((7, 300), **options))) == (300, 7, 3)
    assert jpeg_shape(memoryview(as_jpeg(mode="CMYK"))) == (SIZE, SIZE, 4)
    for data in (b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\xff\xd8" + b"\xff" * 99, bytes(99)):
        assert jpeg_shape(memoryview(data)) is None


def test_two_classes_of_one_name_are_refused(copy):
    folder = copy("raw")
    seal(folder, lambda content: content.update(class_names=["a", "b", "a", "c"]))
    with pytest.raises(DataError, match="not as `convert` writes it") as caught:
        open_store(folder)
    assert caught.value.exit_code == 3
