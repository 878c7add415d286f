"""One's own images: class folders, lists of labels, images without a label."""

import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.convert import Options, convert
from pipelines.convert.open import open_source
from pipelines.errors import ConfigError, DataError
from pipelines.sources import Skipped
from pipelines.sources.folder import side_for
from pipelines.sources.hold_out import held_out
from pipelines.store.store import Store, open_store
from pipelines.store.verify import verify
from tests.image_files import write_flat, write_folder
from tests.reading import check


def stored(source: Path, out: Path, size: int | None = None, **own) -> Store:
    options = Options(formats=("dali",), size=size, workers=1)
    convert(open_source(str(source), Options(**own)), out, options)
    assert verify(out).problems == []
    return open_store(out)


def by_pillow(path: str, size: int) -> np.ndarray:
    """Crop the middle as ImageOps.fit does."""
    from PIL import ImageOps

    with Image.open(path) as photo:
        whole = photo.convert("RGB")
        return np.asarray(ImageOps.fit(whole, (size, size), Image.Resampling.BICUBIC))


def test_class_folders_are_read_back_pixel_by_pixel(tmp_path):
    source = write_folder(tmp_path / "pets")
    store = stored(source, tmp_path / "out", test_fraction=0.25)
    assert store.class_names == ["class0", "class1", "class2"]
    assert (store.splits["train"].count, store.splits["test"].count) == (18, 6)
    assert store.splits["train"].height == 32  # the largest usual side that the images fill
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
    assert any("held out" in note for note in raw.notes)
    assert set(open_source(str(source), Options(test_fraction=0)).splits) == {"train"}


def test_holding_out_is_stratified_and_seeded():
    labels = np.repeat([0, 1, 2, -1], [50, 10, 1, 30])
    keys = [f"{index}.jpg" for index in range(len(labels))]
    chosen = held_out(labels, keys, 0.2, seed=3)
    assert np.bincount(labels[chosen], minlength=3).tolist() == [10, 2, 0]
    assert (chosen == held_out(labels, keys, 0.2, seed=3)).all()
    assert (chosen != held_out(labels, keys, 0.2, seed=4)).any()
    assert not held_out(np.zeros(5, np.int64), keys, 0.1, seed=0).any()  # not 1 of 5


def test_images_that_are_added_leave_the_test_set_nearly_as_it_was():
    keys = [f"{index}.jpg" for index in range(200)]
    before = held_out(np.zeros(200, np.int64), keys, 0.1, seed=0)
    tested = set(np.array(keys)[before])
    for number in range(20):
        more = [f"new{number}.jpg", *keys]
        after = held_out(np.zeros(201, np.int64), more, 0.1, seed=0)
        assert len(tested - set(np.array(more)[after])) <= 1


def test_the_test_set_does_not_depend_on_where_the_folder_lies(tmp_path):
    chosen = []
    for place in ("here", "there"):
        source = write_folder(tmp_path / place / "pets", per_class=20)
        (chunk,) = open_source(str(source), Options()).splits["test"].chunks()
        chosen.append([os.path.relpath(path, source) for path in chunk.paths])
    assert chosen[0] == chosen[1]


def message(raw) -> str:
    return "\n".join([*raw.notes, *raw.warnings])


def test_few_test_images_are_counted_and_warned_about(tmp_path):
    source = write_folder(tmp_path / "pets", per_class=5, size=(8, 8))
    raw = open_source(str(source), Options())
    assert set(raw.splits) == {"train"}  # a tenth of five labels is less than one
    assert "15 training images, 15 of them labeled (5 per class); 0 test images" in message(raw)
    assert "no test images" in raw.warnings[0]
    raw = open_source(str(source), Options(test_fraction=0.4))
    assert "9 training images" in message(raw) and "6 test images (2 per class)" in message(raw)
    assert "6 test images, 2 of the class class0, are too few" in raw.warnings[0]
    assert "; give more test images by --test DIR" in raw.warnings[0]
    many = write_folder(tmp_path / "many", classes=5, per_class=20, size=(8, 8))
    assert open_source(str(many), Options(test_fraction=0.5)).warnings == []
    single = write_folder(tmp_path / "many" / "rare", classes=1, per_class=1).parent
    assert "classes with one labeled image: rare" in message(open_source(str(single), Options()))


def test_images_without_a_label_follow_the_labeled_ones(tmp_path):
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
    ("text", "message"),
    [
        ("gone.jpg,cat\n", "not under"),
        ("../pile/../secret.jpg,cat\n", "not under"),
        ("loose0.jpg,cat\nloose0.jpg,dog\n", "line 2"),
        ("loose0.jpg\n", "line 1"),
        ("", "no label"),
    ],
)
def test_a_list_of_labels_that_is_wrong(text, message, tmp_path):
    source = write_flat(tmp_path / "pile", count=2)
    (tmp_path / "secret.jpg").write_bytes((source / "loose1.jpg").read_bytes())
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_source(str(source), Options(labels=tmp_path / "labels.csv"))


def test_a_list_that_is_a_pipe_is_not_read(tmp_path, monkeypatch):
    source = write_flat(tmp_path / "pile", count=2)
    os.mkfifo(tmp_path / "labels.csv")
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("it would wait for ever"))
    with pytest.raises(DataError, match="not a regular file"):
        open_source(str(source), Options(labels=tmp_path / "labels.csv"))


def write_list(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n")
    return path


def labels_of(raw, split: str) -> dict[str, int]:
    chunks = list(raw.splits[split].chunks()) if split in raw.splits else []
    return {
        Path(path).name: int(label)
        for chunk in chunks
        for path, label in zip(chunk.paths, chunk.labels, strict=True)
    }


@pytest.mark.parametrize("other", ["absolute", "dots", "link"])
def test_labels_that_contradict_are_found_however_the_path_is_written(other, tmp_path):
    source = write_flat(tmp_path / "pile", count=3)
    (tmp_path / "link").symlink_to(source)
    path = {
        "absolute": source / "loose0.jpg",
        "dots": "../pile/./loose0.jpg",
        "link": tmp_path / "link" / "loose0.jpg",
    }[other]
    listed = write_list(tmp_path / "labels.csv", "loose0.jpg,cat", "loose1.jpg,dog", f"{path},dog")
    with pytest.raises(DataError, match=r"line 3: .*loose0\.jpg is 'dog' here and 'cat' above"):
        open_source(str(source), Options(labels=listed))
    write_list(listed, "loose0.jpg,cat", "loose1.jpg,dog", f"{path},cat")
    assert labels_of(open_source(str(source), Options(labels=listed)), "train")["loose0.jpg"] == 0


def test_pseudo_labels_are_never_tested_on(tmp_path):
    source = write_flat(tmp_path / "pile", count=40)
    rows = [f"loose{n}.jpg,{'ab'[n % 2]},{'given' if n < 20 else 'pseudo'}" for n in range(40)]
    listed = write_list(tmp_path / "labels.csv", "path,label,source", *rows)
    raw = open_source(str(source), Options(labels=listed, test_fraction=0.5))
    tested = labels_of(raw, "test")
    assert len(tested) == 10 and all(int(name[5:-4]) < 20 for name in tested)
    assert len(labels_of(raw, "train")) == 30
    assert raw.pseudo_labels == 20 and "20 labels are pseudo-labels" in message(raw)
    convert(raw, tmp_path / "out", Options(workers=1))
    assert open_store(tmp_path / "out").manifest.pseudo_labels == 20
    # A label that a person gave as well is a given one.
    given = [row.replace("pseudo", "given") for row in rows]
    both = write_list(listed, "path,label,source", *rows, *given)
    raw = open_source(str(source), Options(labels=both, test_fraction=0.5))
    assert len(labels_of(raw, "test")) == 20
    with pytest.raises(DataError, match="20 images with source=pseudo"):
        write_list(listed, "path,label,source", *rows)
        open_source(str(source), Options(labels=listed, test_list=listed))


def test_cells_that_were_guarded_against_spreadsheets_are_read_back(tmp_path):
    source = write_flat(tmp_path / "pile", count=2)
    (source / "loose0.jpg").rename(source / "=cat.jpg")
    listed = write_list(tmp_path / "labels.csv", "'=cat.jpg,'+1+1", "loose1.jpg,dog")
    raw = open_source(str(source), Options(labels=listed))
    assert sorted(raw.class_names) == ["+1+1", "dog"]
    assert labels_of(raw, "train").keys() == {"=cat.jpg", "loose1.jpg"}


def test_a_list_of_test_images_is_tested_on_and_left_out_of_training(tmp_path):
    source = write_folder(tmp_path / "pets", classes=2, per_class=4, suffixes=(".jpg",))
    outside = write_flat(tmp_path / "outside", count=2)
    tested = write_list(
        tmp_path / "test.csv",
        "path,label",
        "class0/picture1.jpg,class0",
        f"{source}/class1/picture2.jpg,class1",
        f"{outside}/loose1.jpg,class1",
    )
    raw = open_source(str(source), Options(test_list=tested))
    assert labels_of(raw, "test") == {"picture1.jpg": 0, "picture2.jpg": 1, "loose1.jpg": 1}
    assert "2 test images are left out of training" in message(raw)
    everything = [f"class1/picture{number}.jpg,class1" for number in range(4)]
    only = open_source(
        str(source), Options(test_list=write_list(tmp_path / "all.csv", *everything))
    )
    assert "classes without a labeled training image: class1" in message(only)
    (chunk,) = raw.splits["train"].chunks()
    assert len(chunk.paths) == 6 and not {*chunk.paths} & {str(source / "class1/picture2.jpg")}
    for rows, why in [
        (["gone.jpg,class0"], "images that do not exist"),
        (["class0/picture1.jpg,class0", "class0/picture2.jpg,"], "images without a label"),
        (["class0/picture1.jpg,bird"], "bird is a class that the training images do not have"),
    ]:
        with pytest.raises(DataError, match=why):
            open_source(str(source), Options(test_list=write_list(tested, *rows)))


def test_a_test_folder_of_links_into_the_training_images_is_not_trained_on(tmp_path):
    source = write_folder(tmp_path / "pets", classes=2, per_class=4)
    for path in [*source.glob("class*/picture0*"), *source.glob("class*/picture1*")]:
        link = tmp_path / "test" / path.parent.name / f"linked_{path.name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    raw = open_source(str(source), Options(test=tmp_path / "test", follow=True))
    assert (raw.splits["train"].count, raw.splits["test"].count) == (4, 4)
    assert not any("picture0" in name or "picture1" in name for name in labels_of(raw, "train"))


def test_a_list_of_training_images_leaves_out_all_others(tmp_path):
    source = write_folder(tmp_path / "pets", classes=3, per_class=4, suffixes=(".jpg",))
    rows = ["class0/picture0.jpg,cat", "class1/picture1.jpg,dog", "class2/picture2.jpg,"]
    train = write_list(tmp_path / "train.csv", *rows)
    tested = write_list(tmp_path / "test.csv", "class0/picture3.jpg,cat")
    raw = open_source(str(source), Options(train_list=train, test_list=tested))
    assert raw.class_names == ["cat", "dog"]
    assert labels_of(raw, "train") == {"picture0.jpg": 0, "picture1.jpg": 1, "picture2.jpg": -1}
    assert labels_of(raw, "test") == {"picture3.jpg": 0}
    with pytest.raises(ConfigError, match="--labels and --train-list are both given"):
        Options(train_list=train, labels=train)
    with pytest.raises(ConfigError, match="--test-list and --test-fraction are both given"):
        Options(test_list=tested, test_fraction=0.2)


def test_class_names_of_any_number_of_digits_are_sorted(tmp_path):
    source = write_flat(tmp_path / "pile", count=4)
    names = ["9" * 5000, "10", "9", "\u0661"]
    rows = [f"loose{n}.jpg,{name}" for n, name in enumerate(names)]
    raw = open_source(str(source), Options(labels=write_list(tmp_path / "labels.csv", *rows)))
    assert raw.class_names == ["9", "10", "9" * 5000, "\u0661"]


def test_what_is_passed_over_is_counted_with_the_way_to_include_it(tmp_path):
    source = write_folder(tmp_path / "pets", classes=2, per_class=2)
    for number in range(3):
        (source / "class0" / f"{number}.heic").touch()
        (source / "class0" / f"{number}.txt").touch()
    (source / "class1" / "README").touch()
    (source / "class1" / "\x1b[31m.x\x1b").touch()
    text = message(open_source(str(source), Options()))
    assert "3 HEIC images were passed over; to include them: pip install pillow-heif" in text
    assert "5 files whose suffix is not that of an image were passed over: 3 .txt" in text
    assert "1 no suffix" in text and "\x1b" not in text


@pytest.mark.parametrize("suffix", ["jfif", "avif", "jpe", "jp2", "tiff", "dib", "apng"])
def test_every_suffix_of_an_accepted_format_is_read(suffix, tmp_path):
    source = write_folder(tmp_path / "pets", classes=2, per_class=2)
    form = {"jfif": "JPEG", "jpe": "JPEG", "jp2": "JPEG2000", "apng": "PNG"}.get(suffix)
    Image.new("RGB", (40, 40), "red").save(source / "class0" / f"red.{suffix}", form)
    assert stored(source, tmp_path / "out", test_fraction=0).splits["train"].count == 5


def test_heic_images_are_read_if_pillow_heif_is_installed(tmp_path, monkeypatch):
    """A stand-in for pillow-heif: what it registers is a PNG by another name."""
    from PIL import PngImagePlugin

    from pipelines import image_formats

    module = types.ModuleType("pillow_heif")

    def register() -> None:
        Image.register_open("HEIF", PngImagePlugin.PngImageFile, lambda prefix: True)
        Image.register_extension("HEIF", ".heic")

    module.register_heif_opener = register
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    for name in ("OPEN", "EXTENSION"):
        monkeypatch.setattr(Image, name, {**getattr(Image, name)})
    monkeypatch.setattr(Image, "ID", [*Image.ID])
    image_formats.accepted.cache_clear()
    image_formats.suffixes.cache_clear()
    try:
        source = write_folder(tmp_path / "pets", classes=2, per_class=2)
        Image.new("RGB", (40, 40), "red").save(source / "class0" / "red.heic", "PNG")
        raw = open_source(str(source), Options(test_fraction=0))
        assert raw.splits["train"].count == 5 and "HEIC" not in message(raw)
    finally:
        image_formats.accepted.cache_clear()
        image_formats.suffixes.cache_clear()


def test_many_links_are_scanned_in_time_that_grows_with_their_number(tmp_path, monkeypatch):
    source = write_folder(tmp_path / "pets", classes=2, per_class=2)
    outside = write_flat(tmp_path / "outside", count=1) / "loose0.jpg"
    for number in range(300):
        (source / "class0" / f"{number}.jpg").symlink_to(outside)

    compared = 0

    class Counting(Skipped):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = Skipped.__hash__

    monkeypatch.setattr("pipelines.sources.scan.Skipped", Counting)
    raw = open_source(str(source), Options(test_fraction=0))
    assert len(raw.skipped) == 300 and compared < 3 * 300


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
    source = write_folder(tmp_path / "two", classes=2)
    with pytest.raises(DataError, match="a class that the training images do not have") as caught:
        open_source(str(source), Options(test=write_folder(tmp_path / "test", classes=3)))
    assert "label an image of that class, or leave its test images out" in caught.value.fix
    with pytest.raises(DataError, match="class2, class3 are 2 classes that the training images"):
        open_source(str(source), Options(test=write_folder(tmp_path / "more", classes=4)))
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
    assert sum("inside.jpg" in path for path in paths) == 1 and len(paths) == 8 + 8 + 2
    assert {Path(one.path).name for one in inside.skipped} >= {"out.jpg", "more"}
    assert any("2 links" in note and "--follow" in note for note in inside.notes)
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
