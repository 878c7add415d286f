"""What all tests share: a folder of converted data, made once for the whole session."""

import fcntl
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Point FASTSSL_DATA at a folder that holds the digits, one folder for all xdist workers."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = root / "data"
    os.environ["FASTSSL_DATA"] = str(folder)
    folder.mkdir(exist_ok=True)
    with (root / "data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        from pipelines.store import ensure_store

        ensure_store("digits")
    return folder
