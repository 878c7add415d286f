"""Which images of the training set are labelled, unlabelled and held out.

A split is a pure function of the true labels and the seed. Asking for more labels with the same
seed keeps the ones there were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipelines.errors import ConfigError, DataError
from pipelines.sampling.rng import permutation

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
    labels_wanted: int | Literal["all"],
    seed: int,
    include_labeled: bool = True,
    imbalance: float = 1.0,
    unlabeled_imbalance: float = 1.0,
    validation: int | float = 0,
    index_file: Path | None = None,
) -> Split:
    """Choose the labelled, unlabelled and validation images; a label of -1 means it has none.

    Args:
        labels: the class of every training image.
        classes: how many classes there are.
        labels_wanted: how many labelled images, or "all" that have a label.
        seed: which ones.
        include_labeled: whether labelled images stand in the unlabelled set too.
        imbalance: images of the most frequent class over the least, among the labelled.
        unlabeled_imbalance: the same among the unlabelled, by their true classes.
        validation: how many labelled images (or which share of them) to hold out.
        index_file: a published split: the labelled indices, as text, .csv or .npy.
    """
    _check_ratio("imbalance", imbalance)
    _check_ratio("unlabeled_imbalance", unlabeled_imbalance)
    published = None if index_file is None else read_indices(index_file, labels)
    held_out = _hold_out(labels, classes, validation, seed, published)
    free = np.array(labels, dtype=np.int64)  # the class, or -1: no label, or held out
    free[held_out] = -1
    if published is None:
        labeled = _choose_labeled(free, classes, labels_wanted, imbalance, seed)
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
    """Return the share of each class against the first: exponential, down to 1/ratio."""
    return ratio ** -(np.arange(classes) / max(classes - 1, 1))


def read_indices(path: Path, labels: npt.NDArray[np.int64]) -> Indices:
    """Read a published split and check that the data set can follow it."""
    try:
        found = np.load(path).ravel() if path.suffix == ".npy" else _read_text(path)
        if not np.issubdtype(found.dtype, np.integer):
            raise ValueError(f"it holds {found.dtype}, not whole numbers")
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot read the split {path}: {error}",
            "give a text or .csv file with one index a line, or a .npy of whole numbers",
        ) from error
    indices = np.sort(found.astype(np.int64))
    outside = indices[(indices < 0) | (indices >= len(labels))]
    twice = indices[1:][indices[1:] == indices[:-1]]
    fix = "give indices of the store's train split (index.csv lists them)"
    if not len(indices):
        raise DataError(f"the split {path} is empty", fix)
    if len(outside):
        what = f"the split {path} names image {outside[0]}; the training set has {len(labels):,}"
        raise DataError(what, fix)
    if len(twice):
        raise DataError(f"the split {path} names image {twice[0]} twice", fix)
    bare = indices[labels[indices] < 0]
    if len(bare):
        raise DataError(f"the split {path} names image {bare[0]}, which has no label", fix)
    return indices


def _read_text(path: Path) -> npt.NDArray[np.int64]:
    """Read the first column of a text file; a heading and `#` remarks are passed over."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    cells = [line.replace(",", " ").split()[0] for line in lines if line.strip(", ")]
    if cells and not cells[0].lstrip("+-").isdigit() and path.suffix == ".csv":
        cells = cells[1:]
    return np.array([int(cell) for cell in cells], dtype=np.int64)


def _check_ratio(name: str, ratio: float) -> None:
    if not 1 <= ratio < np.inf:
        raise ConfigError(
            f"{name} is {ratio}; it is the most frequent class over the least frequent one",
            f"give 1 (balanced) or more, as {name}=100",
        )


def _check_published(
    found: int, wanted: int | Literal["all"], imbalance: float, path: Path | None
) -> None:
    if wanted not in ("all", found):
        raise ConfigError(
            f"labels={wanted}, but the split {path} names {found:,} images",
            f"write labels={found} or labels=all",
        )
    if imbalance != 1:
        raise ConfigError(
            f"imbalance={imbalance} cannot hold: the split {path} says which images are labelled",
            "leave out one of the two",
        )


def _shuffled(members: Indices, seed: int, purpose: str, group: int) -> Indices:
    """Shuffle the members of one class; another class's members make no difference to it."""
    return members[permutation(seed, purpose, group, len(members))]


def _take(labels: npt.NDArray[np.int64], counts: Sequence[int], seed: int, purpose: str) -> Indices:
    """Take `counts[c]` images of every class c, at random, in ascending order."""
    parts = [
        _shuffled(np.flatnonzero(labels == group), seed, purpose, group)[:count]
        for group, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(parts)).astype(np.int64)


def _apportion(shares: npt.NDArray[np.float64], total: int) -> list[int]:
    """Divide `total` by shares into whole numbers that add up to it (largest remainders)."""
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
    """Choose the validation images: every class by its share of the labelled images."""
    pool = np.array(labels, dtype=np.int64)
    if published is not None:
        pool[published] = -1
    sizes = np.bincount(pool[pool >= 0], minlength=classes).astype(np.float64)
    total = round(wanted * sizes.sum()) if isinstance(wanted, float) else wanted
    if total < 0 or total >= max(sizes.sum(), 1):
        raise ConfigError(
            f"validation={wanted} asks for {total:,} of {int(sizes.sum()):,} labelled images",
            "give a number of images or a share between 0 and 1, as validation=0.1",
        )
    if not total:
        return np.empty(0, dtype=np.int64)
    return _take(pool, _apportion(sizes, total), seed, "validate")


def _choose_labeled(
    labels: npt.NDArray[np.int64],
    classes: int,
    wanted: int | Literal["all"],
    imbalance: float,
    seed: int,
) -> Indices:
    available = np.bincount(labels[labels >= 0], minlength=classes)
    if wanted == "all":
        if imbalance == 1:
            return np.flatnonzero(labels >= 0)
        return _take(labels, _largest_tail(available, imbalance), seed, "label")
    if wanted < classes or (imbalance == 1 and wanted % classes):
        near = max(round(wanted / classes), 1) * classes
        raise ConfigError(
            f"labels={wanted} cannot be shared out over {classes} classes",
            f"take a multiple of {classes}, as labels={near}, or labels=all",
        )
    counts = _apportion(profile(classes, imbalance), wanted)
    for group, count in enumerate(counts):
        if not 0 < count <= available[group]:
            raise ConfigError(
                f"labels={wanted} wants {count:,} labelled images of class {group}, "
                f"which has {available[group]:,}",
                "change labels, imbalance or validation, or take labels=all",
            )
    return _take(labels, counts, seed, "label")


def _largest_tail(available: npt.NDArray[np.int64], ratio: float) -> list[int]:
    """Return the largest long tail that the classes can fill, in whole images."""
    shares = profile(len(available), ratio)
    head = float((available / shares).min())
    counts = [int(count) for count in np.floor(head * shares + 1e-9)]
    if not min(counts):
        raise ConfigError(
            f"an imbalance of {ratio} leaves no image of the rarest class",
            "give a smaller imbalance",
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
    """Thin the unlabelled set out to a long tail, keeping the labelled images it holds."""
    if (labels[offered] < 0).any():
        raise ConfigError(
            "unlabeled_imbalance needs the class of every unlabelled image, and some have none",
            "leave unlabeled_imbalance out for this data set",
        )
    counts = _largest_tail(np.bincount(labels[offered], minlength=classes), ratio)
    kept = []
    for group, count in enumerate(counts):
        members = _shuffled(offered[labels[offered] == group], seed, "tail", group)
        first = np.argsort(~np.isin(members, labeled), kind="stable")  # the labelled ones first
        kept.append(members[first][:count])
    return np.sort(np.concatenate(kept)).astype(np.int64)
