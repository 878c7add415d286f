import os
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import ConfigError, DataError
from pipelines.sampling.split import make_split, profile

LABELS = np.arange(1000) % 10


def split(labels=LABELS, classes=10, **given):
    given = {"labels_wanted": 40, "seed": 0} | given
    return make_split(labels, classes, **given)


def per_class(labels, indices, classes=10):
    return np.bincount(labels[indices], minlength=classes).tolist()


def test_balanced_and_the_unlabeled_set_is_the_whole_set():
    found = split()
    assert per_class(LABELS, found.labeled) == [4] * 10
    assert len(np.unique(found.labeled)) == 40
    np.testing.assert_array_equal(found.unlabeled, np.arange(1000))
    assert len(found.validation) == 0
    assert all(part.dtype == np.int64 for part in (found.labeled, found.unlabeled))


def test_the_seed_alone_decides_and_more_labels_keep_the_old_ones():
    np.random.seed(5)
    one = split()
    np.random.seed(6)
    np.testing.assert_array_equal(one.labeled, split().labeled)
    assert (one.labeled != split(seed=1).labeled).any()
    assert set(one.labeled) < set(split(labels_wanted=250).labeled)


def test_labeled_images_can_be_left_out_of_the_unlabeled_set():
    found = split(include_labeled=False)
    assert len(found.unlabeled) == 960
    assert not set(found.unlabeled) & set(found.labeled)


def test_all_labels_of_a_set_of_unequal_classes():
    labels = np.array([0] * 5 + [1] * 3 + [-1] * 4)
    found = split(labels, 2, labels_wanted="all")
    assert found.labeled.tolist() == list(range(8))
    assert found.unlabeled.tolist() == list(range(12))


def test_labels_come_from_the_labeled_part_of_a_store():
    labels = np.concatenate([np.arange(100) % 10, np.full(900, -1)])
    found = split(labels, include_labeled=False)
    assert found.labeled.max() < 100
    assert len(found.unlabeled) == 960


@pytest.mark.parametrize("validation", [100, 0.1])
def test_validation_is_stratified_and_in_no_other_part(validation):
    labels = np.concatenate([LABELS, np.full(50, -1)])
    found = split(labels, validation=validation, labels_wanted="all")
    assert per_class(labels, found.validation) == [10] * 10
    assert not set(found.validation) & (set(found.labeled) | set(found.unlabeled))
    assert len(found.labeled) == 900 and len(found.unlabeled) == 950


def test_validation_does_not_depend_on_the_labels_asked_for():
    one, other = split(validation=50), split(validation=50, labels_wanted=250)
    np.testing.assert_array_equal(one.validation, other.validation)


def test_a_long_tail_adds_up_and_has_its_ratio():
    labels = np.arange(20_000) % 10
    found = split(labels, labels_wanted=1000, imbalance=100)
    counts = per_class(labels, found.labeled)
    assert sum(counts) == 1000 and counts == sorted(counts, reverse=True)
    assert counts[0] == pytest.approx(100 * counts[-1], rel=0.15)
    every = split(labels, labels_wanted="all", imbalance=100)
    assert per_class(labels, every.labeled) == [int(2000 * s + 1e-9) for s in profile(10, 100)]


def test_a_long_tailed_unlabeled_set_keeps_the_labeled_images():
    labels = np.arange(20_000) % 10
    found = split(labels, unlabeled_imbalance=50)
    counts = per_class(labels, found.unlabeled)
    assert counts[0] == 2000 and counts[-1] == 40
    assert set(found.labeled) <= set(found.unlabeled)
    apart = split(labels, unlabeled_imbalance=50, include_labeled=False)
    assert not set(apart.labeled) & set(apart.unlabeled)


def test_two_classes_and_one_class():
    assert per_class(LABELS % 2, split(LABELS % 2, 2, labels_wanted=4).labeled, 2) == [2, 2]
    assert len(split(LABELS * 0, 1, labels_wanted=4, imbalance=5).labeled) == 4


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "heading.csv", "a.npy"])
def test_a_published_split(tmp_path, name):
    wanted, path = [3, 14, 159], tmp_path / name
    if name == "a.npy":
        np.save(path, np.array([[159, 3, 14]], dtype=np.int32))
    elif name == "heading.csv":
        path.write_text("index,label\n159,9\n3,3\n14,4\n")
    else:
        path.write_text("159\n3  # a remark\n\n14\n")
    found = split(index_file=path, labels_wanted="all", validation=900)
    assert found.labeled.tolist() == wanted
    assert not set(found.validation) & set(wanted)
    assert len(found.unlabeled) == 100


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1\ntwo\n", "cannot read"),
        ("1\n1000\n", "image 1000 of 1,000 training images"),
        ("-1\n", "image -1"),
        ("5\n5\n", "image 5 twice"),
        ("", "is empty"),
    ],
)
def test_a_published_split_that_does_not_fit_is_refused(tmp_path, text, complaint):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint) as caught:
        split(index_file=path, labels_wanted="all")
    assert "bad.txt" in caught.value.what


def npy(shape: tuple[int, ...], data: bytes) -> bytes:
    """Return a .npy file whose header may promise more than follows."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", b""),
        ("a.npy", b"PK\x05\x06" + bytes(18)),  # an .npz without arrays
        ("a.npy", npy((10**15,), bytes(80))),
        ("a.txt", b"1\n99999999999999999999999\n"),
        ("a.txt", b"9" * 5000),
        ("a.txt", b",\t,\n"),
        ("a.txt", b"caf\xe9\n"),
        ("a.csv", b"\x1b[2J\n\x1b[2J\n"),
        ("a.txt", b"\x00\x01"),
    ],
)
def test_a_split_that_cannot_be_read_is_refused_in_two_lines(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        split(index_file=tmp_path / name, labels_wanted="all")
    assert "\x1b" not in caught.value.what and len(caught.value.what) < 600


@pytest.mark.parametrize("name", ["a.txt", "a.npy"])
def test_a_split_that_is_a_pipe_is_not_read(tmp_path, name, monkeypatch):
    os.mkfifo(tmp_path / name)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opening it would wait for ever"))
    with pytest.raises(DataError, match="not a regular file"):
        split(index_file=tmp_path / name, labels_wanted="all")


def test_a_published_split_of_unlabeled_images_floats_or_nothing_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("7\n")
    with pytest.raises(DataError, match="no label"):
        split(np.full(10, -1), index_file=tmp_path / "a.txt", labels_wanted="all")
    np.save(tmp_path / "a.npy", np.array([1.5]))
    with pytest.raises(DataError, match="not integers"):
        split(index_file=tmp_path / "a.npy", labels_wanted="all")
    with pytest.raises(DataError, match="missing"):
        split(index_file=tmp_path / "missing.txt", labels_wanted="all")
    with pytest.raises(ConfigError, match="names 1 images"):
        split(index_file=tmp_path / "a.txt", labels_wanted=40)
    with pytest.raises(ConfigError, match="imbalance=2"):
        split(index_file=tmp_path / "a.txt", labels_wanted="all", imbalance=2)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"labels_wanted": 42}, "42 cannot be divided equally among 10"),
        ({"labels_wanted": 0}, "0 cannot be divided equally"),
        ({"labels_wanted": 2000}, "200 labeled images of class 0, which has 100"),
        ({"labels_wanted": 900, "imbalance": 100}, "of class 0, which has 100"),
        ({"labels_wanted": 10, "imbalance": 1000}, "needs 0 labeled"),
        ({"imbalance": 0.5}, "imbalance is 0.5"),
        ({"unlabeled_imbalance": float("nan")}, "unlabeled_imbalance is nan"),
        ({"unlabeled_imbalance": 1e6}, "no image of the rarest"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"validation": -1}, "validation=-1"),
        ({"validation": 980}, "which has 2"),
    ],
)
def test_an_impossible_split_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        split(**given)


def test_an_unlabeled_tail_needs_true_classes():
    labels = np.concatenate([LABELS, [-1]])
    with pytest.raises(ConfigError, match="class of every unlabeled image"):
        split(labels, unlabeled_imbalance=10)


def test_n_per_class_takes_as_many_as_there_are():
    labels = np.array([0] * 9 + [1] * 3 + [2] * 7 + [-1] * 5)
    split = make_split(labels, 3, labels_wanted="5/class", seed=0)
    assert np.bincount(labels[split.labeled]).tolist() == [5, 3, 5]
    more = make_split(labels, 3, labels_wanted="7/class", seed=0)
    assert set(split.labeled) <= set(more.labeled)
    equal = make_split(labels, 3, labels_wanted="3/class", seed=0)
    assert equal.labeled.tolist() == make_split(labels, 3, labels_wanted=9, seed=0).labeled.tolist()
    with pytest.raises(ConfigError, match="contradicts labels=5/class"):
        make_split(labels, 3, labels_wanted="5/class", seed=0, imbalance=2)


def test_messages_name_classes():
    labels = np.array([0] * 9 + [1] * 3)
    names = ["rose", "tulip\x1b[31m", "daisy"]
    with pytest.raises(ConfigError, match="no labeled image, such as daisy"):
        make_split(labels, 3, labels_wanted="5/class", seed=0, class_names=names)
    with pytest.raises(ConfigError, match="of class tulip") as caught:
        make_split(labels, 2, labels_wanted=10, seed=0, class_names=names[:2])
    assert "labels=5/class" in caught.value.fix and "\x1b" not in str(caught.value)
