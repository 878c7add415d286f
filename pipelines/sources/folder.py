"""A folder of one's own images: class folders, or lists of images, and some without a label."""

import os
from collections.abc import Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.errors import ConfigError, DataError
from pipelines.image_formats import open_file
from pipelines.sources import Labels, Source, SourceOptions, SourceSplit, file_chunks
from pipelines.sources.hold_out import FRACTION, describe, held_out
from pipelines.sources.label_file import Listed, read_list
from pipelines.sources.scan import Scan
from pipelines.text import for_terminal, listed

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)
PROBED = 32  # images whose headers suggest a size
SHOWN = 10  # missing images listed by name
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "unlabeled"}


class Item(NamedTuple):
    """An image file of a split."""

    path: str
    label: int  # -1: none
    pseudo: bool = False  # True if a model chose the label: it is never tested on


def source(folder: Path, options: SourceOptions) -> Source:
    """Return the images under a folder."""
    folder = folder.resolve() if ".." in folder.parts else folder.absolute()
    scan = Scan(folder, options.follow, _apart(folder, options))
    notes: list[str] = []
    if options.train_list is not None:
        names, train = _train_list(folder, options.train_list)
    elif options.labels is not None:
        names, train = _labeled(scan, options.labels)
    elif options.no_labels:
        names, train = [], [Item(path, -1) for path in scan.images()]
    else:
        names, train = _class_folders(scan, notes)
    if options.unlabeled is not None:
        train += [Item(path, -1) for path in scan.at(options.unlabeled).images()]
    share = 0.0
    test: list[Item] = []
    if options.test is not None:
        test = _test_folder(scan.at(options.test), names)
    elif options.test_list is not None:
        test = _test_list(folder, options.test_list, names)
    if test:
        train, everything = _without(train, test), len(train)
        if len(train) < everything:
            notes.append(f"{everything - len(train):,} test images are left out of training")
    else:
        share = FRACTION if options.test_fraction is None else options.test_fraction
        given = np.array([-1 if item.pseudo else item.label for item in train], np.int64)
        keys = [os.path.relpath(item.path, folder) for item in train]
        chosen = held_out(given, keys, share, options.seed)
        train, test = [*compress(train, ~chosen)], [*compress(train, chosen)]
    size = suggested_size([item.path for item in train])
    about, warnings = describe(names, _labels(train), _labels(test), share)
    pseudo = sum(item.pseudo and item.label >= 0 for item in train)
    if pseudo:
        notes.append(f"{pseudo:,} labels are pseudo-labels: they are trained on, not tested on")
    splits = {"train": _split(train, size), "test": _split(test, size)}
    return Source(
        name=folder.name or "own",
        class_names=names,
        splits={name: split for name, split in splits.items() if split.count},
        resize="crop",
        skipped=list(scan.links.values()),
        notes=[*notes, *scan.notes(), *about],
        warnings=warnings,
        pseudo_labels=pseudo,
    )


def _without(train: list[Item], test: list[Item]) -> list[Item]:
    """Return the training images that are not test images too, by a link or by a list."""
    tested = {os.path.realpath(item.path) for item in test}
    return [item for item in train if os.path.realpath(item.path) not in tested]


def _apart(folder: Path, options: SourceOptions) -> frozenset[str]:
    """Return --unlabeled and --test, to be left out of the scan: no image is in two splits."""
    given = {"--unlabeled": options.unlabeled, "--test": options.test}
    real = {flag: path.resolve() for flag, path in given.items() if path is not None}
    for flag, path in real.items():
        if folder.resolve().is_relative_to(path):
            raise ConfigError(f"{flag} {path} holds the images of {folder}", "give another")
    if len(real) > len(set(real.values())):
        raise ConfigError("--unlabeled and --test name one folder", "give two")
    return frozenset(map(str, real.values()))


def _class_folders(scan: Scan, notes: list[str]) -> tuple[list[str], list[Item]]:
    """Return the classes, one for each folder, and their images."""
    folders = scan.folders()
    names = [path.name for path in folders]
    if folders and {name.lower() for name in names} <= _SPLITS:
        raise DataError(
            f"{scan.root} holds {', '.join(names)}: splits, not classes",
            f"fastssl convert {folders[-1]} OUT --test DIR --unlabeled DIR",
        )
    loose = scan.loose()
    if loose:
        raise DataError(
            f"{for_terminal(loose[0])} and {len(loose) - 1:,} more images lie outside class "
            "folders",
            "put them in one folder per class, or list them with --labels FILE.csv; --no-labels "
            "takes all images without a label, to choose some to label",
        )
    odd = [name for name in names if name.lower() in _SPLITS]
    if odd:
        notes.append(
            f"taken for classes: {', '.join(odd)}; use --test and --unlabeled if they are not"
        )
    images: list[Item] = []
    kept: list[str] = []
    for path in folders:
        files = list(scan.images(path))
        if files:
            images += [Item(file, len(kept)) for file in files]
            kept.append(path.name)
        else:
            notes.append(f"left out: the folder {for_terminal(path.name)} holds no image")
    if len(kept) < 2:
        raise DataError(
            f"{scan.root} holds {len(kept)} class folders with images; at least two are needed",
            "put the images of each class in a folder of its own, or give --labels FILE.csv",
        )
    return kept, images


def _labeled(scan: Scan, file: Path) -> tuple[list[str], list[Item]]:
    """Read labels from a list; an image that is not in it has none. Labeled images come first."""
    wanted = {path: one for path, one in read_list(file, scan.root).items() if one.label}
    known = dict.fromkeys(scan.images())
    lost = [path for path in wanted if path not in known]
    _refuse(file, lost, f"images that are not under {scan.root}")
    return _items({path: wanted.get(path, Listed("", pseudo=False)) for path in known})


def _train_list(folder: Path, file: Path) -> tuple[list[str], list[Item]]:
    """Return the images of a list and no others."""
    listed = read_list(file, folder)
    _refuse(file, [path for path in listed if not os.path.isfile(path)], "images that do not exist")
    return _items(listed)


def _items(listed: dict[str, Listed]) -> tuple[list[str], list[Item]]:
    """Return the classes, sorted, and the images: first those with a label."""
    names = sorted({one.label for one in listed.values()} - {""}, key=_numbers_first)
    number_of = {"": -1, **{name: number for number, name in enumerate(names)}}
    items = [Item(path, number_of[one.label], one.pseudo) for path, one in listed.items()]
    return names, sorted(items, key=lambda item: item.label < 0)


def _numbers_first(name: str) -> tuple[bool, int, str]:
    number = name.isascii() and name.isdecimal()
    digits = name.lstrip("0") if number else ""  # compared as text: a number may have any length
    return (not number, len(digits), digits or name)


def _refuse(file: Path, paths: Sequence[str], what: str) -> None:
    if paths:
        shown = "".join(f"\n    {for_terminal(path)}" for path in paths[:SHOWN])
        raise DataError(
            f"{file} lists {len(paths):,} {what}:{shown}",
            "write paths that are absolute or relative to the folder of images",
        )


def _test_list(folder: Path, file: Path, names: list[str]) -> list[Item]:
    listed = read_list(file, folder)
    _refuse(file, [path for path in listed if not os.path.isfile(path)], "images that do not exist")
    _refuse(file, [path for path, one in listed.items() if not one.label], "images without a label")
    pseudo = [path for path, one in listed.items() if one.pseudo]
    if pseudo:
        raise DataError(
            f"{file} lists {len(pseudo):,} images with source=pseudo, labels chosen by a model",
            "test on labels given by people: remove these lines",
        )
    number_of = _numbers(names, {one.label for one in listed.values()})
    return [Item(path, number_of[one.label]) for path, one in listed.items()]


def _test_folder(scan: Scan, names: list[str]) -> list[Item]:
    found = tested_classes(scan)
    number_of = _numbers(names, found)
    images = [Item(file, number_of[name]) for name, files in found.items() for file in files]
    if not images:
        raise DataError(f"{scan.root} holds no class folders with images", "look at --test")
    return images


def _numbers(names: list[str], tested: Iterable[str]) -> dict[str, int]:
    """Return the number of each class after checking those of the test set."""
    refuse_untrained(names, tested)
    return {name: number for number, name in enumerate(names)}


def refuse_untrained(names: Iterable[str], tested: Iterable[str]) -> None:
    """Raise if a class has test images, but no training image with a label."""
    strangers = sorted({*tested} - {*names})
    if not strangers:
        return
    is_one = len(strangers) == 1
    what = "is a class" if is_one else f"are {len(strangers)} classes"
    each = "that class" if is_one else "each of them"
    raise DataError(
        f"{listed(strangers)} {what} that the training images do not have",
        f"label an image of {each}, or leave {'its' if is_one else 'their'} test images out; the "
        f"classes with a label are: {listed(sorted(names, key=_numbers_first))}",
    )


def tested_classes(scan: Scan) -> dict[str, list[str]]:
    """Return the images of each class folder that has some."""
    found = {path.name: list(scan.images(path)) for path in scan.folders()}
    return {name: files for name, files in found.items() if files}


def _labels(images: Sequence[Item]) -> Labels:
    return np.array([item.label for item in images], np.int64)


def _split(images: Sequence[Item], size: int) -> SourceSplit:
    paths, labels = [item.path for item in images], _labels(images)
    return SourceSplit(len(paths), size, lambda: file_chunks(paths, labels, paths))


def suggested_size(files: Sequence[str]) -> int:
    """Suggest a side: the common one of square images, else one that most of them fill."""
    sizes = []
    for path in files[:: max(len(files) // PROBED, 1)]:
        try:
            with open_file(path) as image:
                sizes.append(image.size)
        except Exception:  # bad images are reported when they are converted
            continue
    return side_for(sizes)


def side_for(sizes: Sequence[tuple[int, int]]) -> int:
    """Suggest a side for images of these sizes."""
    if not sizes:
        return SIDES[0]
    width, height = sizes[0]
    if width == height and set(sizes) == {(width, height)} and 4 <= width <= 256:
        return width
    median = sorted(min(size) for size in sizes)[len(sizes) // 2]
    return max((side for side in SIDES if side <= median), default=SIDES[0])
