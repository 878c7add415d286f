"""From what the user typed to a source: a standard name, a folder, or a `.npz`."""

import os
from difflib import get_close_matches
from pathlib import Path

from pipelines.datasets import DATASETS
from pipelines.errors import ConfigError, DataError
from pipelines.sources import Source, arrays, cifar, digits, folder, imagenet, stl10, svhn
from pipelines.sources.download import download as fetch
from pipelines.sources.folder import OwnOptions


def default_root() -> Path:
    """Return where the publishers' files lie unless --root says otherwise."""
    return Path(os.environ.get("FASTSSL_DATA") or "data") / "raw"


def open_source(
    name: str,
    own: OwnOptions,
    *,
    root: Path | None = None,
    download: bool = False,
    extra: bool = True,
) -> Source:
    """Return the raw data that `name` stands for."""
    if name in DATASETS:
        _refuse_own(name, own)
        return _standard(name, root or default_root(), download, extra, own.follow)
    if root is not None or download:
        raise ConfigError("--root and --download go with a standard data set", _names())
    path = Path(name)
    if path.is_dir():
        return folder.source(path, own)
    if path.is_file() and path.suffix == ".npz":
        return arrays.source(path, own)
    near = get_close_matches(name, list(DATASETS), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(f"{name!r} is no folder, no .npz and no standard data set", hint + _names())


def _names() -> str:
    return f"the standard data sets are {', '.join(DATASETS)}"


def _refuse_own(name: str, own: OwnOptions) -> None:
    given = {
        "--unlabeled": own.unlabeled,
        "--labels": own.labels,
        "--test": own.test,
        "--test-fraction": own.test_fraction,
    }
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"{flag} goes with pictures of your own, not with {name}", "omit it")


def _standard(name: str, root: Path, download: bool, extra: bool, follow: bool) -> Source:
    if download:
        fetch(name, root, extra=extra)
    if name == "digits":
        return digits.source()
    if name == "svhn":
        return svhn.source(root, extra=extra)
    if name == "stl10":
        return stl10.source(root)
    if name == "imagenet":
        return imagenet.source(root, follow=follow)
    return cifar.source(name, root)
