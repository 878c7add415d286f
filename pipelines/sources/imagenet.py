"""ImageNet from ILSVRC's folders: `train/nXXXXXXXX/`, and `val/` as folders or flat."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines.errors import DataError
from pipelines.sources import Dataset, Source, SourceOptions, SourceSplit, file_chunks
from pipelines.sources.scan import Scan

DEVKIT = "ILSVRC2012_devkit_t12"
_WNID = re.compile(r"n\d{8}")
_FLAT = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)


def source(entry: Dataset, root: Path, options: SourceOptions) -> Source:
    """Return the classes found under `train`, a thousand of them or a part."""
    base = _base(root)
    scan = Scan(base, options.follow)
    train = _classes(scan, "train")
    if not train:
        raise _missing(entry, base / "train")
    names = sorted(train)
    validation = _classes(scan, "val") or _flat(entry, base, scan)
    strangers = sorted(set(validation) - set(names))
    if strangers:
        raise DataError(
            f"val holds classes that train does not: {', '.join(strangers[:10])}",
            "give both the same classes",
        )
    notes = [] if len(names) == entry.classes else [f"{len(names)} classes, not {entry.classes:,}"]
    splits = {
        "train": _split(base, names, train, entry.train_size or entry.size),
        "test": _split(base, names, validation, entry.size),
    }
    made = entry.source(names, splits, [*scan.notes(), *notes])
    made.skipped.extend(scan.links.values())
    return made


def _base(root: Path) -> Path:
    for base in (root, root / "imagenet", root / "ILSVRC", root / "ILSVRC/Data/CLS-LOC"):
        if (base / "train").is_dir():
            return base
    return root


def _missing(entry: Dataset, path: Path) -> DataError:
    return DataError(
        f"{path} is missing, or holds no folder named like n01440764",
        f"get ILSVRC 2012 from {entry.page}, unpack it and give its folder by --root",
    )


def _classes(scan: Scan, split: str) -> dict[str, list[str]]:
    folder = scan.root / split
    folders = scan.at(folder).folders() if folder.is_dir() else []
    found = [path for path in folders if _WNID.fullmatch(path.name)]
    return {path.name: list(scan.at(folder).images(path)) for path in found}


def _flat(entry: Dataset, base: Path, scan: Scan) -> dict[str, list[str]]:
    """Sort the images of a flat `val` into classes, by the devkit's ground truth."""
    images = scan.at(base / "val").loose() if (base / "val").is_dir() else []
    numbered = [(path, _FLAT.fullmatch(Path(path).name)) for path in images]
    if not numbered:
        raise _missing(entry, base / "val")
    truth = _ground_truth(entry, base)
    classes: dict[str, list[str]] = {}
    for path, match in numbered:
        number = int(match.group(1)) if match else 0
        if not 1 <= number <= len(truth):
            raise DataError(
                f"{path} has no line in the ground truth", "give val the names ILSVRC gives it"
            )
        classes.setdefault(truth[number - 1], []).append(path)
    return classes


def _ground_truth(entry: Dataset, base: Path) -> list[str]:
    """Return the class of every image of `val`, by its number."""
    from scipy.io import loadmat

    for folder in (base / DEVKIT, base.parent / DEVKIT, base):
        truth, meta = (
            folder / "data/ILSVRC2012_validation_ground_truth.txt",
            folder / "data/meta.mat",
        )
        if truth.is_file() and meta.is_file():
            break
    else:
        raise DataError(
            f"val is flat, and its ground truth is missing: {base / DEVKIT}",
            f"get {DEVKIT}.tar.gz from {entry.page} and unpack it there",
        )
    try:
        synsets = loadmat(meta, squeeze_me=True)["synsets"]
        wnids = {int(one["ILSVRC2012_ID"]): str(one["WNID"]) for one in np.atleast_1d(synsets)}
        return [wnids[int(line)] for line in truth.read_text().split()]
    except Exception as error:  # a damaged file raises nearly anything
        raise DataError(
            f"{truth.parent} is not as published: {type(error).__name__} {error}",
            f"get {DEVKIT}.tar.gz again from {entry.page}",
        ) from None


def _split(
    base: Path, names: Sequence[str], classes: dict[str, list[str]], size: int
) -> SourceSplit:
    files = [path for name in names for path in classes.get(name, [])]
    counts = [len(classes.get(name, [])) for name in names]
    labels = np.repeat(np.arange(len(names)), counts)
    cut = len(str(base)) + 1
    paths = [path[cut:] for path in files]
    return SourceSplit(len(files), size, lambda: file_chunks(files, labels, paths))
