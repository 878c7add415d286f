"""A store by name or path, converted at its first use if its data comes with a library."""

import os
from pathlib import Path

from pipelines.convert.driver import convert
from pipelines.convert.open import open_source
from pipelines.convert.options import Options
from pipelines.datasets import DATASETS
from pipelines.errors import DataError
from pipelines.store.manifest import NAME
from pipelines.store.store import Store, default_place, open_store


def ensure_store(name_or_path: str | os.PathLike[str]) -> Store:
    """Open a store by its path or the name of a dataset; `digits` is converted at first use."""
    path = Path(name_or_path)
    name = os.fspath(name_or_path)
    if name not in DATASETS or (path / NAME).exists():
        return open_store(path)
    path = default_place(name)
    if not (path / NAME).exists():
        if not DATASETS[name].bundled:
            download = "  (or --download)" if DATASETS[name].files else ""
            raise DataError(
                f"{name} is not converted yet: there is no store at {path}",
                f"fastssl convert {name} --root FOLDER_OF_ITS_FILES{download}",
            )
        # Another process may be converting the same dataset: wait for it.
        convert(open_source(name, Options()), path, wait=True)
    return open_store(path)
