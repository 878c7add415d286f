"""The files that publishers ship: their MD5 sums, checked before anything reads them."""

import hashlib
from pathlib import Path

from pipelines.errors import DataError
from pipelines.store.manifest import file_digest

# As published, and as torchvision checks them. Tests that write their own files replace entries.
MD5: dict[str, dict[str, str]] = {
    "cifar10": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    "cifar100": {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    "svhn": {
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        "extra_32x32.mat": "a93ce644f1a588dc4d68dda5feec44a7",
    },
    "stl10": {
        "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
        "train_y.bin": "5a34089d4802c674881badbb80307741",
        "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
        "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
        "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    },
}

PAGES = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "svhn": "http://ufldl.stanford.edu/housenumbers",
    "stl10": "https://cs.stanford.edu/~acoates/stl10",
    "imagenet": "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
}


def find_folder(name: str, root: Path, *bases: str) -> Path:
    """Return the folder with a data set's files: one named as its archive makes it, or `root`."""
    first = next(iter(MD5[name]))
    for folder in (*(root / base for base in bases), root):
        if (folder / first).exists():
            return folder
    return root / bases[0] if bases else root


def checked(name: str, folder: Path, file: str) -> Path:
    """Return the path of a published file once its checksum is right."""
    path = folder / file
    _exists(name, path)
    _compare(name, path, file_digest(path, "md5"))
    return path


def read_checked(name: str, folder: Path, file: str) -> bytes:
    """Return the content of a published file; what was checked is what is returned."""
    path = folder / file
    _exists(name, path)
    data = path.read_bytes()
    _compare(name, path, hashlib.md5(data, usedforsecurity=False).hexdigest())
    return data


def _exists(name: str, path: Path) -> None:
    if not path.is_file():
        raise DataError(
            f"{path} is missing (MD5 {MD5[name][path.name]})",
            f"get it from {PAGES[name]} and say where with --root, or add --download",
        )


def _compare(name: str, path: Path, found: str) -> None:
    wanted = MD5[name][path.name]
    if found != wanted:
        raise DataError(
            f"{path} is not the published file: its MD5 is {found}, not {wanted}",
            f"remove it and get it again from {PAGES[name]}, or with --download",
        )
