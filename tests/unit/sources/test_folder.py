"""One's own pictures: class folders, lists of labels, pictures without a label."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.convert import Options, convert
from pipelines.convert.open import open_source
from pipelines.errors import ConfigError, DataError
from pipelines.sources.folder import side_for
from pipelines.sources.hold_out import held_out
from pipelines.store.store import Store, open_store
from pipelines.store.verify import verify
from tests.pictures import write_flat, write_folder
from tests.reading import check


def stored(source: Path, out: Path, size: int | None = None, **own) -> Store:
    options = Options(formats=("dali",), size=size, workers=1)
    convert(open_source(str(source), Options(**own)), out, options)
    assert verify(out).problems == []
    return open_store(out)


def by_pillow(path: str, size: int) -> np.ndarray:
    """Crop the middle as ImageOps.fit does."""
    from PIL import ImageOps

    with Image.open(path) as picture:
        whole = picture.convert("RGB")
        return np.asarray(ImageOps.fit(whole, (size, size), Image.Resampling.BICUBIC))


def test_class_folders_are_read_back_pixel_by_pixel(tmp_path):
    source = write_folder(tmp_path / "pets")
    store = stored(source, tmp_path / "out", test_fraction=0.25)
    assert store.class_names == ["class0", "class1", "class2"]
    assert (store.splits["train"].count, store.splits["test"].count) == (18, 6)
    assert store.splits["train"].height == 32  # the largest usual side that the pictures fill
    for split in store.splits:
        paths = store.source_paths(split)
        kinds = [int(Path(path).parent.name[-1]) for path in paths]
        check(store, split, np.stack([by_pillow(path, 32) for path in paths]), kinds)


def test_mean_and_deviation_are_measured_on_the_training_images(tmp_path):
    store = stored(write_folder(tmp_path / "pets"), tmp_path / "out", size=24)
    pixels = np.stack([store.image("train", n) for n in range(store.splits["train"].count)]) / 255
    np.testing.assert_allclose(store.mean, pixels.mean((0, 1, 2)), atol=2e-6)
    np.testing.assert_allclose(store.std, pixels.std((0, 1, 2)), atol=2e-6)


def test_a_tenth_is_held_out_unless_one_says_otherwise(tmp_path):
    source = write_folder(tmp_path / "pets", per_class=10)
    raw = open_source(str(source), Options())
    assert (raw.splits["train"].count, raw.splits["test"].count) == (27, 3)
    assert "held out" in raw.notes[0]
    assert set(open_source(str(source), Options(test_fraction=0)).splits) == {"train"}


def test_holding_out_is_stratified_and_seeded():
    labels = np.repeat([0, 1, 2, -1], [50, 10, 1, 30])
    chosen = held_out(labels, 0.2, seed=3)
    assert np.bincount(labels[chosen], minlength=3).tolist() == [10, 2, 0]
    assert (chosen == held_out(labels, 0.2, seed=3)).all()
    assert (chosen != held_out(labels, 0.2, seed=4)).any()


def test_pictures_without_a_label_follow_the_labeled_ones(tmp_path):
    source = write_folder(tmp_path / "pets", per_class=4)
    loose = write_flat(tmp_path / "loose", count=5)
    test = write_folder(tmp_path / "held", classes=2, per_class=2, seed=9)
    store = stored(source, tmp_path / "out", unlabeled=loose, test=test)
    assert store.labels("train").tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [-1] * 5
    assert store.labels("test").tolist() == [0, 0, 1, 1]
    check(store, "train", None, store.labels("train").tolist())
    assert ",train,,/" in (store.path / "index.csv").read_text()


@pytest.mark.parametrize("listed", [False, True])
def test_folders_inside_the_source_have_a_part_of_their_own(listed, tmp_path):
    source = write_folder(tmp_path / "pets", classes=2, per_class=4)
    rest = write_flat(source / "unlabeled", count=5)
    test = write_folder(source / "test", classes=2, per_class=2, seed=9)
    rows = [f"class{number}/picture0.jpg,class{number}\n" for number in range(2)]
    (tmp_path / "labels.csv").write_text("".join(rows))
    labels = tmp_path / "labels.csv" if listed else None
    raw = open_source(str(source), Options(unlabeled=rest, test=test, labels=labels))
    assert raw.class_names == ["class0", "class1"]
    assert {name: split.count for name, split in raw.splits.items()} == {"train": 13, "test": 4}
    paths = [path for split in raw.splits.values() for one in split.chunks() for path in one.paths]
    assert len(set(paths)) == 17
    raw = open_source(str(source), Options())
    assert raw.notes[0].startswith("taken for classes: test, unlabeled;")


def test_no_folder_is_trained_and_tested_on(tmp_path):
    source = write_folder(tmp_path / "pets")
    with pytest.raises(ConfigError, match=r"--test .* holds the images of"):
        open_source(str(source), Options(test=source))
    with pytest.raises(ConfigError, match=r"--unlabeled .* holds the images of"):
        open_source(str(source), Options(unlabeled=tmp_path))
    with pytest.raises(ConfigError, match="name one folder"):
        inside = source / "class0"
        open_source(str(source), Options(unlabeled=inside, test=inside))


def test_a_list_of_labels(tmp_path):
    source = write_flat(tmp_path / "pile", count=9)
    (source / "deep").mkdir()
    (source / "loose8.jpg").rename(source / "deep" / "loose8.jpg")
    listed = tmp_path / "labels.csv"
    listed.write_text(
        "path,label\nloose0.jpg,10\n./loose3.jpg,9\nloose4.jpg,10\ndeep/loose8.jpg,9\nloose5.jpg,\n"
    )
    store = stored(source, tmp_path / "out", labels=listed, test_fraction=0)
    assert store.class_names == ["9", "10"]
    names = [Path(path).name for path in store.source_paths("train")]
    assert names[:4] == ["loose0.jpg", "loose3.jpg", "loose4.jpg", "loose8.jpg"]
    assert store.labels("train").tolist() == [1, 0, 1, 0] + [-1] * 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gone.jpg,cat\n", "not under"),
        ("../pile/../secret.jpg,cat\n", "not under"),
        ("loose0.jpg,cat\nloose0.jpg,dog\n", "line 2"),
        ("loose0.jpg\n", "line 1"),
        ("", "no label"),
    ],
)
def test_a_list_of_labels_that_is_wrong(text, told, tmp_path):
    source = write_flat(tmp_path / "pile", count=2)
    (tmp_path / "secret.jpg").write_bytes((source / "loose1.jpg").read_bytes())
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        open_source(str(source), Options(labels=tmp_path / "labels.csv"))


def test_folders_that_hold_no_classes(tmp_path):
    flat = write_flat(tmp_path / "flat")
    with pytest.raises(DataError, match="outside class folders"):
        open_source(str(flat), Options())
    write_folder(tmp_path / "split" / "train")
    write_folder(tmp_path / "split" / "val")
    with pytest.raises(DataError, match="splits, not classes"):
        open_source(str(tmp_path / "split"), Options())
    with pytest.raises(DataError, match="1 class folders"):
        open_source(str(write_folder(tmp_path / "one", classes=1)), Options())
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="0 class folders"):
        open_source(str(tmp_path / "none"), Options())
    with pytest.raises(DataError, match="a class that the training images do not have"):
        source = write_folder(tmp_path / "two", classes=2)
        open_source(str(source), Options(test=write_folder(tmp_path / "test", classes=3)))
    with pytest.raises(ConfigError, match="both"):
        open_source(str(source), Options(test=tmp_path, test_fraction=0.1))
    with pytest.raises(ConfigError, match="out of range"):
        open_source(str(source), Options(test_fraction=1.5))


def test_an_empty_folder_and_other_files_are_passed_by(tmp_path):
    source = write_folder(tmp_path / "pets")
    (source / "empty").mkdir()
    (source / ".git").mkdir()
    (source / "class0" / "notes.txt").write_text("hello")
    os.mkfifo(source / "class0" / "pipe.jpg")  # opening it would wait for ever
    raw = open_source(str(source), Options(test_fraction=0))
    assert (raw.class_names, raw.splits["train"].count) == (["class0", "class1", "class2"], 24)
    assert "empty" in raw.notes[0]


def test_links_that_leave_the_folder_are_followed_only_on_demand(tmp_path):
    source = write_folder(tmp_path / "pets", classes=2)
    outside = write_flat(tmp_path / "outside", count=3)
    (source / "class0" / "out.jpg").symlink_to(outside / "loose0.jpg")
    (source / "class1" / "more").symlink_to(outside)
    (source / "class1" / "inside.jpg").symlink_to(source / "class0" / "picture0.jpg")
    (source / "class1" / "round").symlink_to(source)
    (source / "class1" / "gone.jpg").symlink_to(source / "nothing.jpg")
    inside = open_source(str(source), Options(test_fraction=0))
    paths = [path for chunk in inside.splits["train"].chunks() for path in chunk.paths]
    assert not any("out.jpg" in path or "/more/" in path for path in paths)
    assert sum("inside.jpg" in path for path in paths) >= 1
    assert {Path(one.path).name for one in inside.skipped} >= {"out.jpg", "more"}
    assert "--follow" in inside.notes[-1]
    followed = open_source(str(source), Options(test_fraction=0, follow=True))
    paths = [path for chunk in followed.splits["train"].chunks() for path in chunk.paths]
    assert {"out.jpg", "loose2.jpg"} <= {Path(path).name for path in paths}
    assert followed.skipped == []


def test_names_with_newlines_commas_and_stray_bytes_come_back(tmp_path):
    source = write_folder(tmp_path / "pets", classes=2, per_class=2, suffixes=(".jpg",))
    names = [
        b'new\nline, "quoted".jpg',
        b"stray\xff\xfe.jpg",
        b"back\\slash\\x0a.jpg",
        "ü€😀.jpg".encode(),
    ]
    for name in names:
        data = (source / "class0" / "picture0.jpg").read_bytes()
        Path(os.fsdecode(os.fsencode(source / "class1") + b"/" + name)).write_bytes(data)
    store = stored(source, tmp_path / "out", test_fraction=0)
    found = {os.fsencode(Path(path).name) for path in store.source_paths("train")}
    assert found == {b"picture0.jpg", b"picture1.jpg", *names}
    lines = (tmp_path / "out" / "index.csv").read_bytes().decode().splitlines()
    assert len(lines) == 1 + 8
    assert all(os.path.exists(path) for path in store.source_paths("train"))


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(32, 32)] * 3, 32),
        ([(28, 28)], 28),
        ([(640, 480), (500, 375), (100, 80)], 224),
        ([(40, 32)], 32),
        ([(10, 500)], 32),
        ([(1000, 1000)], 224),
        ([], 32),
    ],
)
def test_a_side_is_suggested(sizes, side):
    assert side_for(sizes) == side
