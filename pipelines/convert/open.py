"""From the SOURCE that the user typed to raw data: a standard name, a folder, or a `.npz`."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from pipelines.datasets import DATASETS
from pipelines.errors import ConfigError, DataError
from pipelines.sources import Source, SourceOptions, arrays, folder
from pipelines.sources.published import download
from pipelines.store.store import default_place

OWN = ("unlabeled", "labels", "train_list", "test", "test_list", "test_fraction")


def open_source(name: str, options: SourceOptions) -> Source:
    """Return the raw data that `name` stands for."""
    if name in DATASETS:
        _refuse(options, OWN, f"images of your own, not for {name}")
        entry, root = DATASETS[name], options.root or default_place("raw")
        if options.download:
            download(entry, root, extra=not options.no_extra)
        return entry.open(root, options)
    if options.root is not None or options.download:
        raise ConfigError("--root and --download are for standard datasets", _names())
    path = Path(name)
    if path.is_dir():
        return folder.source(path, options)
    check_source(name)
    _refuse(options, OWN[:-1], "a folder of images, not for a .npz")
    return arrays.source(path, options)


def check_source(name: str) -> None:
    """Raise if `name` stands for nothing that can be converted."""
    path = Path(name)
    if name in DATASETS or path.is_dir() or (path.is_file() and path.suffix == ".npz"):
        return
    near = get_close_matches(name, list(DATASETS), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(f"{name!r} is no folder, no .npz and no standard dataset", hint + _names())


def _names() -> str:
    return f"the standard datasets are {', '.join(DATASETS)}"


def _refuse(options: SourceOptions, keys: Iterable[str], purpose: str) -> None:
    for key in keys:
        if getattr(options, key) is not None:
            raise ConfigError(f"--{key.replace('_', '-')} is for {purpose}", "omit it")
