"""Reading stores without our own code: by tarfile and Pillow, and by ffcv's reader."""

import io
import tarfile

import numpy as np
from PIL import Image

from pipelines.store.store import Store


def read_tars(store: Store, split: str) -> tuple[list[bytes], list[int], list[int]]:
    """Return the image files, labels and indices of a split, by Python's tarfile."""
    members: dict[str, dict[str, bytes]] = {}
    for path in store.shards(split):
        with tarfile.open(path) as archive:
            for member in archive:
                name, suffix = member.name.split(".")
                file = archive.extractfile(member)
                assert file is not None and member.mtime == 0
                members.setdefault(name, {})[suffix] = file.read()
    assert list(members) == [f"{place:08d}" for place in range(store.splits[split].count)]
    suffix = "ppm" if store.splits[split].encoding == "raw" else "jpg"
    images = [member[suffix] for member in members.values()]
    kinds = [int(member["cls"]) for member in members.values()]
    return images, kinds, [int(member["idx"]) for member in members.values()]


def read_beton(store: Store, split: str) -> tuple[list[bytes], list[int], list[int]]:
    """Return the stored bytes, labels and indices of a split, by ffcv's own reader."""
    from ffcv.reader import Reader

    reader = Reader(str(store.beton(split)))
    data = store.beton(split).read_bytes()
    assert reader.field_names == ["image", "label", "index"]
    sizes = {int(row["sample_id"]): row for row in reader.alloc_table}
    images = []
    for place, row in enumerate(reader.metadata):
        assert row["f0"]["data_ptr"] == sizes[place]["ptr"]
        start = int(sizes[place]["ptr"])
        images.append(data[start : start + int(sizes[place]["size"])])
    return images, reader.metadata["f1"].tolist(), reader.metadata["f2"].tolist()


def decode(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as photo:
        return np.asarray(photo.convert("RGB"))


def check(store: Store, split: str, pixels: np.ndarray | None, labels: list[int]) -> None:
    """Check that both formats hold these labels, and these pixels or the same JPEGs."""
    count = len(labels)
    info = store.splits[split]
    raw = info.encoding == "raw"
    by_tar = read_tars(store, split)
    assert by_tar[1:] == (labels, list(range(count)))
    if "ffcv" in store.formats:
        by_beton = read_beton(store, split)
        assert by_beton[1:] == (labels, list(range(count)))
        head = b"P6\n%d %d\n255\n" % (info.width, info.height) if raw else b""
        assert [head + image for image in by_beton[0]] == by_tar[0]
    assert store.labels(split).tolist() == labels
    for place in range(count):
        image = decode(by_tar[0][place])
        np.testing.assert_array_equal(store.image(split, place), image)
        if pixels is not None:
            np.testing.assert_array_equal(image, pixels[place])
