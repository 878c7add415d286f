"""Which images of the training set are labeled, unlabeled and held out.

A split is a pure function of the true labels and the seed. With the same seed, a larger number of
labels includes all images of a smaller one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.errors import ConfigError, DataError
from pipelines.sampling.rng import permutation
from pipelines.text import for_terminal

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Indices into the store's `train`, each part in ascending order."""

    labeled: Indices
    unlabeled: Indices
    validation: Indices  # in neither of the other two


def make_split(
    labels: npt.NDArray[np.int64],
    classes: int,
    *,
    labels_wanted: int | str,
    seed: int,
    class_names: Sequence[str] | None = None,
    include_labeled: bool = True,
    imbalance: float = 1.0,
    unlabeled_imbalance: float = 1.0,
    validation: int | float = 0,
    index_file: Path | None = None,
) -> Split:
    """Choose the labeled, unlabeled and validation images.

    Args:
        labels: the class of every training image; -1 where it has no label.
        classes: the number of classes.
        labels_wanted: the number of labeled images, "N/class" for up to N of each class, or "all"
            that have a label.
        seed: selects the images.
        class_names: the names of the classes, for messages.
        include_labeled: whether the unlabeled set contains the labeled images too.
        imbalance: images of the most frequent class over the least, among the labeled.
        unlabeled_imbalance: the same among the unlabeled, by their true classes.
        validation: the number of labeled images to hold out, or their share if it is a float.
        index_file: a published split: the labeled indices, as text, .csv or .npy.
    """
    _check_ratio("imbalance", imbalance)
    _check_ratio("unlabeled_imbalance", unlabeled_imbalance)
    published = None if index_file is None else read_indices(index_file, labels)
    held_out = _hold_out(labels, classes, validation, seed, published)
    free = np.array(labels, dtype=np.int64)  # the class; -1 if it has no label or is held out
    free[held_out] = -1
    if published is None:
        names = class_names or [str(group) for group in range(classes)]
        labeled = _choose_labeled(free, names, labels_wanted, imbalance, seed)
    else:
        labeled = published
        _check_published(len(published), labels_wanted, imbalance, index_file)

    offered = np.ones(len(labels), dtype=bool)
    offered[held_out] = False
    if not include_labeled:
        offered[labeled] = False
    unlabeled = np.flatnonzero(offered)
    if unlabeled_imbalance != 1:
        unlabeled = _long_tail(labels, classes, unlabeled, labeled, unlabeled_imbalance, seed)
    return Split(labeled, unlabeled, held_out)


def profile(classes: int, ratio: float) -> npt.NDArray[np.float64]:
    """Return the size of each class relative to the first: exponential, down to 1/ratio."""
    return ratio ** -(np.arange(classes) / max(classes - 1, 1))


def read_indices(path: Path, labels: npt.NDArray[np.int64]) -> Indices:
    """Read a published split and check it against the labels of the training set."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise DataError(f"the split {path} is not a regular file", "write the indices into a file")
    try:
        with path.open("rb") as file:
            found = (
                np.load(file).ravel()
                if path.suffix == ".npy"
                else _read_text(file.read(), path.suffix)
            )
        if not np.issubdtype(found.dtype, np.integer):
            raise ValueError(f"it contains {found.dtype}, not integers")
        indices = np.sort(found.astype(np.int64))
    except Exception as error:  # a damaged file raises nearly anything
        reason = str(error)[:200] or type(error).__name__
        raise DataError(
            f"cannot read the split {path}: {for_terminal(reason)}",
            "give a text or .csv file with one index per line, or a .npy file of integers",
        ) from error
    outside = indices[(indices < 0) | (indices >= len(labels))]
    twice = indices[1:][indices[1:] == indices[:-1]]
    fix = "give indices of the store's train split (index.csv lists them)"
    if not len(indices):
        raise DataError(f"the split {path} is empty", fix)
    if len(outside):
        what = f"the split {path} names image {outside[0]} of {len(labels):,} training images"
        raise DataError(what, fix)
    if len(twice):
        raise DataError(f"the split {path} names image {twice[0]} twice", fix)
    bare = indices[labels[indices] < 0]
    if len(bare):
        raise DataError(f"the split {path} names image {bare[0]}, which has no label", fix)
    return indices


def _read_text(data: bytes, suffix: str) -> npt.NDArray[np.int64]:
    """Read the first column of a text file, without the header line and `#` comments."""
    lines = [line.split("#")[0].strip() for line in data.decode().splitlines()]
    rows = [line.replace(",", " ").split() for line in lines]
    cells = [row[0] for row in rows if row]
    if cells and not cells[0].lstrip("+-").isdigit() and suffix == ".csv":
        cells = cells[1:]
    return np.array([int(cell) for cell in cells], dtype=np.int64)


def _check_ratio(name: str, ratio: float) -> None:
    if not 1 <= ratio < np.inf:
        raise ConfigError(
            f"{name} is {ratio}; expected the size of the most over the least frequent class",
            f"type 1 (balanced) or more, for example {name}=100",
        )


def _check_published(found: int, wanted: int | str, imbalance: float, path: Path | None) -> None:
    if wanted not in ("all", found):
        raise ConfigError(
            f"labels={wanted}, but the split {path} names {found:,} images",
            f"type labels={found} or labels=all",
        )
    if imbalance != 1:
        raise ConfigError(
            f"imbalance={imbalance} contradicts the split {path}, which lists the labeled images",
            "remove imbalance or the file of the split",
        )


def _shuffled(members: Indices, seed: int, purpose: str, group: int) -> Indices:
    """Shuffle the members of one class, independently of all other classes."""
    return members[permutation(seed, purpose, group, len(members))]


def _pick(labels: npt.NDArray[np.int64], counts: Sequence[int], seed: int, purpose: str) -> Indices:
    """Return `counts[c]` random images of every class c, in ascending order."""
    parts = [
        _shuffled(np.flatnonzero(labels == group), seed, purpose, group)[:count]
        for group, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(parts)).astype(np.int64)


def _apportion(shares: npt.NDArray[np.float64], total: int) -> list[int]:
    """Divide `total` by shares into integers that add up to it (largest remainders)."""
    exact = shares / shares.sum() * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return [int(count) for count in counts]


def _hold_out(
    labels: npt.NDArray[np.int64],
    classes: int,
    wanted: int | float,
    seed: int,
    published: Indices | None,
) -> Indices:
    """Choose the validation images; each class has its share of the images with a label."""
    pool = np.array(labels, dtype=np.int64)
    if published is not None:
        pool[published] = -1
    sizes = np.bincount(pool[pool >= 0], minlength=classes).astype(np.float64)
    total = round(wanted * sizes.sum()) if isinstance(wanted, float) else wanted
    if total < 0 or total >= max(sizes.sum(), 1):
        raise ConfigError(
            f"validation={wanted} means {total:,} of {int(sizes.sum()):,} labeled images",
            "type a number of images or a share between 0 and 1, for example validation=0.1",
        )
    if not total:
        return np.empty(0, dtype=np.int64)
    return _pick(pool, _apportion(sizes, total), seed, "validate")


def _choose_labeled(
    labels: npt.NDArray[np.int64],
    names: Sequence[str],
    wanted: int | str,
    imbalance: float,
    seed: int,
) -> Indices:
    classes = len(names)
    available = np.bincount(labels[labels >= 0], minlength=classes)
    if wanted == "all":
        if imbalance == 1:
            return np.flatnonzero(labels >= 0)
        return _pick(labels, _largest_tail(available, imbalance), seed, "label")
    if isinstance(wanted, str):
        return _pick(labels, _up_to(wanted, available, names, imbalance), seed, "label")
    if wanted < classes or (imbalance == 1 and wanted % classes):
        near = max(round(wanted / classes), 1)
        raise ConfigError(
            f"labels={wanted} cannot be divided equally among {classes} classes",
            f"type a multiple of {classes}, for example labels={near * classes}, or "
            f"labels={near}/class, or labels=all",
        )
    counts = _apportion(profile(classes, imbalance), wanted)
    for group, count in enumerate(counts):
        if not 0 < count <= available[group]:
            raise ConfigError(
                f"labels={wanted} needs {count:,} labeled images of class "
                f"{for_terminal(names[group])}, which has {available[group]:,}",
                "change labels, imbalance or validation, or type labels=all"
                + (f", or labels={count}/class for as many as there are" if imbalance == 1 else ""),
            )
    return _pick(labels, counts, seed, "label")


def _up_to(
    wanted: str, available: npt.NDArray[np.int64], names: Sequence[str], imbalance: float
) -> list[int]:
    """Return the images of every class that `labels=N/class` means: N, or as many as there are."""
    if imbalance != 1:
        raise ConfigError(
            f"imbalance={imbalance} contradicts labels={wanted}",
            "remove imbalance, or type the number of all labels",
        )
    empty = np.flatnonzero(available == 0)
    if len(empty):
        raise ConfigError(
            f"{len(empty)} classes have no labeled image, such as {for_terminal(names[empty[0]])}",
            "label some of their images, or convert without these classes",
        )
    return [int(count) for count in np.minimum(int(wanted.removesuffix("/class")), available)]


def _largest_tail(available: npt.NDArray[np.int64], ratio: float) -> list[int]:
    """Return the class sizes of the largest long tail that the classes can fill."""
    shares = profile(len(available), ratio)
    head = float((available / shares).min())
    counts = [int(count) for count in np.floor(head * shares + 1e-9)]
    if not min(counts):
        raise ConfigError(
            f"an imbalance of {ratio} leaves no image of the rarest class",
            "type a smaller imbalance",
        )
    return counts


def _long_tail(
    labels: npt.NDArray[np.int64],
    classes: int,
    offered: Indices,
    labeled: Indices,
    ratio: float,
    seed: int,
) -> Indices:
    """Reduce the unlabeled set to a long tail; the labeled images in it are kept."""
    if (labels[offered] < 0).any():
        raise ConfigError(
            "unlabeled_imbalance needs the class of every unlabeled image, and some have none",
            "remove unlabeled_imbalance for this dataset",
        )
    counts = _largest_tail(np.bincount(labels[offered], minlength=classes), ratio)
    kept = []
    for group, count in enumerate(counts):
        members = _shuffled(offered[labels[offered] == group], seed, "tail", group)
        first = np.argsort(~np.isin(members, labeled), kind="stable")  # the labeled ones first
        kept.append(members[first][:count])
    return np.sort(np.concatenate(kept)).astype(np.int64)
