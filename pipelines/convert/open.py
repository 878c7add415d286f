"""From the SOURCE that the user typed to raw data: a standard name, a folder, or a `.npz`."""

import os
from difflib import get_close_matches
from pathlib import Path

from pipelines.datasets import DATASETS
from pipelines.errors import ConfigError, DataError
from pipelines.sources import Source, SourceOptions, arrays, folder
from pipelines.sources.published import download


def default_root() -> Path:
    """Return the folder of the publishers' files if --root is not given."""
    return Path(os.environ.get("FASTSSL_DATA") or "data") / "raw"


def open_source(name: str, options: SourceOptions) -> Source:
    """Return the raw data that `name` stands for."""
    if name in DATASETS:
        _refuse_own(name, options)
        entry, root = DATASETS[name], options.root or default_root()
        if options.download:
            download(entry, root, extra=not options.no_extra)
        return entry.open(root, options)
    if options.root is not None or options.download:
        raise ConfigError("--root and --download are for standard data sets", _names())
    path = Path(name)
    if path.is_dir():
        return folder.source(path, options)
    if path.is_file() and path.suffix == ".npz":
        return arrays.source(path, options)
    near = get_close_matches(name, list(DATASETS), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(f"{name!r} is no folder, no .npz and no standard data set", hint + _names())


def _names() -> str:
    return f"the standard data sets are {', '.join(DATASETS)}"


def _refuse_own(name: str, options: SourceOptions) -> None:
    for key in ("unlabeled", "labels", "test", "test_fraction"):
        if getattr(options, key) is not None:
            flag = "--" + key.replace("_", "-")
            raise ConfigError(f"{flag} is for images of your own, not for {name}", "omit it")
