"""What all tests share: a folder of converted data, made once for the whole session."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point FASTSSL_DATA at a folder that holds the digits, one folder for all xdist workers."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = root / "data"
    os.environ["FASTSSL_DATA"] = str(folder)
    folder.mkdir(exist_ok=True)
    with (root / "data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        from pipelines.convert.ensure import ensure_store

        ensure_store("digits")
    files = sorted(path.name for path in (folder / "digits").iterdir())
    yield folder
    after = sorted(path.name for path in (folder / "digits").iterdir())
    assert after == files, "a test wrote into the store that others read"


@pytest.fixture(scope="session")
def digits_in_all_formats(data: Path) -> Path:
    """Return a store of the digits in every format that can be written here."""
    folder = data.parent / "digits-in-all-formats"
    with (data.parent / "formats.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "dataset.json").exists():
            import fastssl
            from tests.installed import INSTALLED_FORMATS

            fastssl.convert("digits", folder, formats=INSTALLED_FORMATS, progress=False)
    return folder


@pytest.fixture(scope="session")
def trained(data: Path) -> Path:
    """Return a short FlexMatch run on the digits, trained once for all xdist workers."""
    folder = data.parent / "trained"
    with (data.parent / "trained.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "summary.json").exists():
            import fastssl

            fastssl.train("digits", out=folder, **SHORT_RUN)
    return folder


SHORT_RUN = {
    "algorithm": "flexmatch",
    "algo": {"threshold": 0.6},
    "labels": 400,
    "model": "wrn-10-1",
    "batch": 32,
    "ratio": 1,
    "steps": 60,
    "lr": 0.1,
    "ema": 0.8,
    "bn_momentum": 0.3,
    "eval_every": 60,
    "eval_every_late": 60,
    "log_every": 60,
    "threads": 1,
    "loader_threads": 1,
    "eval_batch": 100,
    "tensorboard": False,
}
