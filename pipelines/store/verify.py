"""The search for damage in a store: checksums are compared and every image is decoded."""

import csv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.cpus import available_cpus
from pipelines.errors import ConfigError, DataError
from pipelines.store import index, manifest
from pipelines.store.index import escape
from pipelines.store.store import Store, open_store, read_manifest

CHUNK = 256
MOST_SHOWN = 50  # problems


@dataclass
class Report:
    """How many images were checked, and what is wrong."""

    images: int = 0
    problems: list[str] = field(default_factory=list)


def verify(
    path: Path,
    sample: int | None = None,
    *,
    begin: Callable[[int], None] = lambda count: None,
    advance: Callable[[int], None] = lambda count: None,
) -> Report:
    """Check sizes and checksums of all files, then decode the images, or a sample of them."""
    if sample is not None and sample < 1:
        raise ConfigError(f"a sample of {sample} images is too small", "use at least 1")
    report = Report()
    try:
        content, _ = read_manifest(path)
    except DataError as error:
        if not (path / manifest.NAME).exists():
            raise
        report.problems.append(error.what)
        return report
    with ThreadPoolExecutor(available_cpus()) as threads:
        files = content.files.items()
        found = threads.map(lambda item: _file_problem(path / item[0], item[1]), files)
        report.problems += [problem for problem in found if problem]
        if report.problems:
            return report
        store = open_store(path)
        try:
            report.problems += _index_problems(store)
        except DataError as error:
            report.problems.append(error.what)
        if report.problems:
            return report
        work = list(_work(store, sample))
        begin(sum(len(numbers) for _, numbers in work))
        for problems, count in threads.map(lambda task: _check_images(store, *task), work):
            report.images += count
            report.problems += problems
            advance(count)
    hidden = len(report.problems) - MOST_SHOWN
    if hidden > 0:
        report.problems[MOST_SHOWN:] = [f"and {hidden:,} more"]
    return report


def _file_problem(path: Path, entry: manifest.FileInfo) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{path.name}: {size:,} bytes, not {entry.size:,}"
        if manifest.digest(path) != entry.sha256:
            return f"{path.name}: its SHA-256 is not the one in {manifest.NAME}"
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    return None


def _index_problems(store: Store) -> list[str]:
    """Compare `index.csv` with the labels of the images."""
    labels = {split: store.labels(split) for split in store.splits}
    seen = dict.fromkeys(labels, 0)
    try:
        for number, split, label, _ in index.read_rows(store.path / index.NAME):
            if number != seen[split] or label != labels[split][number]:
                return [f"{index.NAME}: image {number} of {split} is not as in {split}.npy"]
            seen[split] += 1
    except (ValueError, KeyError, IndexError, csv.Error) as error:
        return [f"{index.NAME} can't be read: {error}"]
    return [
        f"{index.NAME}: {seen[split]:,} images of {split}, not {info.count:,}"
        for split, info in store.splits.items()
        if seen[split] != info.count
    ]


def _work(store: Store, sample: int | None) -> Iterator[tuple[str, list[int]]]:
    """Yield the images to check, in tasks."""
    total = sum(info.count for info in store.splits.values())
    random = np.random.default_rng(0)
    for split, info in store.splits.items():
        numbers = np.arange(info.count)
        if sample is not None and sample < total:
            share = max(round(sample * info.count / total), 1)
            numbers = np.sort(random.permutation(info.count)[:share])
        for start in range(0, len(numbers), CHUNK):
            yield split, numbers[start : start + CHUNK].tolist()


def _check_images(store: Store, split: str, numbers: list[int]) -> tuple[list[str], int]:
    problems = []
    for number in numbers:
        why = _image_problem(store, split, number)
        if why:
            source = escape(store.source_paths(split)[number])
            problems.append(f"{split} image {number} ({source}): {why}")
    return problems, len(numbers)


def _image_problem(store: Store, split: str, number: int) -> str | None:
    try:
        for form in store.formats:
            store.stored(split, form).get(np.array([number]))
        store.image(split, number)
    except DataError as error:
        return error.what
    return None
