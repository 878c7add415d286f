"""A folder of one's own images: class folders, or a list of labels, and some without a label."""

import os
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

import numpy as np

from pipelines.errors import ConfigError, DataError
from pipelines.image_formats import open_file
from pipelines.sources import Skipped, Source, SourceOptions, SourceSplit, file_chunks
from pipelines.sources.hold_out import fraction, held_out, note
from pipelines.sources.label_file import read_labels
from pipelines.sources.scan import Scan
from pipelines.store.index import escape

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)
PROBED = 32  # images whose headers suggest a size
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "unlabeled"}


Files = list[tuple[str, int]]  # image files and their labels, in the order they are stored


def source(folder: Path, options: SourceOptions) -> Source:
    """Return the images under a folder."""
    share = 0.0 if options.test is not None else fraction(options.test_fraction)
    folder = folder.absolute()
    skipped: list[Skipped] = []
    notes: list[str] = []
    scan = Scan(folder, options.follow, skipped, _apart(folder, options))
    if options.labels is not None:
        names, train = _listed(scan, options.labels)
    else:
        names, train = _class_folders(scan, notes)
    if options.unlabeled is not None:
        train += [(path, -1) for path in scan.at(options.unlabeled).images()]
    labels = np.array([label for _, label in train], np.int64)
    test = held_out(labels, share, options.seed)
    size = suggested_size([path for path, _ in train])
    splits = {
        "train": _split([*compress(train, ~test)], size),
        "test": _split([*compress(train, test)], size),
    }
    if options.test is not None:
        splits["test"] = _split(_test_folder(scan.at(options.test), names), size)
    elif options.test_fraction is None:
        notes.append(note(share))
    if skipped:
        notes.append(f"{len(skipped)} links leave the folder and were passed by; --follow")
    return Source(
        name=folder.name or "own",
        class_names=names,
        splits={name: split for name, split in splits.items() if split.count},
        resize="crop",
        skipped=skipped,
        notes=notes,
    )


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


def _class_folders(scan: Scan, notes: list[str]) -> tuple[list[str], Files]:
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
            f"{escape(loose[0])} and {len(loose) - 1:,} more images lie outside class folders",
            "put them in a folder each class, or list them with --labels FILE.csv",
        )
    odd = [name for name in names if name.lower() in _SPLITS]
    if odd:
        notes.append(
            f"taken for classes: {', '.join(odd)}; use --test and --unlabeled if they are not"
        )
    images: Files = []
    kept: list[str] = []
    for path in folders:
        files = list(scan.images(path))
        if files:
            images += [(file, len(kept)) for file in files]
            kept.append(path.name)
        else:
            notes.append(f"left out: the folder {escape(path.name)} holds no image")
    if len(kept) < 2:
        raise DataError(
            f"{scan.root} holds {len(kept)} class folders with images; at least two are needed",
            "put the images of each class in a folder of its own, or give --labels FILE.csv",
        )
    return kept, images


def _listed(scan: Scan, file: Path) -> tuple[list[str], Files]:
    """Read labels from a list; an image that is not in it has none. Labeled images come first."""
    root = os.fspath(scan.root)
    # Paths are relative to the folder, or absolute, as `fastssl label` writes them.
    wanted = {
        os.path.relpath(path, root) if os.path.isabs(path) else path: label
        for path, label in read_labels(file).items()
    }
    known = {os.path.relpath(path, scan.root): path for path in scan.images()}
    lost = [path for path in wanted if path not in known]
    if lost:
        shown = "".join(f"\n    {escape(path)}" for path in lost[:10])
        raise DataError(
            f"{file} lists {len(lost):,} images that are not under {scan.root}:{shown}",
            "write paths relative to that folder",
        )
    names = sorted(set(wanted.values()), key=_numbers_first)
    number_of = {name: number for number, name in enumerate(names)}
    images = [(known[path], number_of[wanted[path]]) for path in known if path in wanted]
    return names, images + [(known[path], -1) for path in known if path not in wanted]


def _numbers_first(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _test_folder(scan: Scan, names: list[str]) -> Files:
    number_of = {name: number for number, name in enumerate(names)}
    images: Files = []
    for path in scan.folders():
        files = list(scan.images(path))
        if files and path.name not in number_of:
            raise DataError(
                f"{path} is a class that the training images do not have",
                f"the classes are: {', '.join(map(escape, names[:20]))}",
            )
        images += [(file, number_of[path.name]) for file in files]
    if not images:
        raise DataError(f"{scan.root} holds no class folders with images", "look at --test")
    return images


def _split(images: Files, size: int) -> SourceSplit:
    paths = [path for path, _ in images]
    labels = np.array([label for _, label in images], np.int64)
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
