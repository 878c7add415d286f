"""Standard datasets in miniature, laid out exactly as their publishers lay them out."""

import hashlib
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from pipelines.datasets import DATASETS
from tests.image_files import noise


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> None:
    """Put the checksums of the files in a folder into the entry of a dataset."""
    entry = DATASETS[name]
    sums = {
        path.name: hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name in entry.files
    }
    monkeypatch.setitem(DATASETS._items, name, replace(entry, files={**entry.files, **sums}))


def images(count: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def labels(count: int, classes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 1000).integers(0, classes, count)


def write_cifar(root: Path, name: str, per_file: int = 7) -> dict[str, tuple]:
    """Write CIFAR-10 or CIFAR-100; return split -> images, labels."""
    ten = name == "cifar10"
    folder = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    folder.mkdir(parents=True)
    files = {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}
    if not ten:
        files = {"train": ["train"], "test": ["test"]}
    classes = 10 if ten else 100
    made: dict[str, tuple] = {}
    for split, names in files.items():
        parts = []
        for number, file in enumerate(names):
            seed = number + 50 * (split == "test")
            pixels, kinds = images(per_file, 32, seed), labels(per_file, classes, seed)
            flat = pixels.transpose(0, 3, 1, 2).reshape(per_file, -1)
            content = {
                b"data": flat,
                b"labels" if ten else b"fine_labels": kinds.tolist(),
                b"filenames": [b"x.png"] * per_file,
            }
            (folder / file).write_bytes(pickle.dumps(content, protocol=2))
            parts.append((pixels, kinds))
        made[split] = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
    names_key = b"label_names" if ten else b"fine_label_names"
    meta = {names_key: [f"kind {n}".encode() for n in range(classes)]}
    (folder / ("batches.meta" if ten else "meta")).write_bytes(pickle.dumps(meta, protocol=2))
    return made


def write_svhn(root: Path, count: int = 9) -> dict[str, tuple]:
    """Write SVHN's three `.mat` files; the digit 0 is published as 10."""
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for seed, part in enumerate(("train", "extra", "test")):
        pixels, kinds = images(count + seed, 32, seed), labels(count + seed, 10, seed)
        published = np.where(kinds == 0, 10, kinds).astype(np.uint8)[:, None]
        content = {"X": pixels.transpose(1, 2, 3, 0), "y": published}
        savemat(root / f"{part}_32x32.mat", content, do_compression=seed == 1)
        made[part] = (pixels, kinds)
    return made


def write_stl10(root: Path, count: int = 6, unlabeled: int = 11) -> dict[str, tuple]:
    """Write STL-10's binary files: by colour, column, row; labels from 1."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    made = {}
    for seed, (part, size) in enumerate(
        {"train": count, "test": 4, "unlabeled": unlabeled}.items()
    ):
        pixels, kinds = images(size, 96, seed), labels(size, 10, seed)
        (folder / f"{part}_X.bin").write_bytes(pixels.transpose(0, 3, 2, 1).tobytes())
        if part == "unlabeled":
            kinds = np.full(size, -1)
        else:
            (folder / f"{part}_y.bin").write_bytes((kinds + 1).astype(np.uint8).tobytes())
        made[part] = (pixels, kinds)
    return made


WNIDS = ["n00000002", "n00000001", "n00000003"]  # in the order of the devkit's numbers


def write_ilsvrc(root: Path, *, flat: bool, per_class: int = 3) -> list[str]:
    """Write ILSVRC's folders; `val` flat with the devkit, or as folders. Return val's classes."""
    random = np.random.default_rng(0)
    for wnid in WNIDS:
        folder = root / "train" / wnid
        folder.mkdir(parents=True)
        for place in range(per_class):
            size = tuple(random.integers(60, 400, 2).tolist())
            noise(size, random).save(folder / f"{wnid}_{place}.JPEG")
    truth = [WNIDS[n] for n in (2, 0, 1, 0)]
    for number, wnid in enumerate(truth, 1):
        folder = root / "val" if flat else root / "val" / wnid
        folder.mkdir(parents=True, exist_ok=True)
        noise((90, 70), random).save(folder / f"ILSVRC2012_val_{number:08d}.JPEG")
    if flat:
        write_devkit(root, [WNIDS.index(wnid) + 1 for wnid in truth])
    return truth


def write_devkit(root: Path, truth: list[int]) -> None:
    """Write the devkit's ground truth and its table of synsets."""
    data = root / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    lines = "".join(f"{one}\n" for one in truth)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    synsets = np.array([(n, wnid, "a thing", 0) for n, wnid in enumerate(WNIDS, 1)], kind)
    savemat(data / "meta.mat", {"synsets": synsets[:, None]})
