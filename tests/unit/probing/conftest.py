"""Tests in this folder have a copy of the digits: features are written into the store."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def copied_digits(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the name digits mean a copy, as other processes read the shared store meanwhile."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(data / "digits", folder / "digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTSSL_DATA", str(folder))
        yield
