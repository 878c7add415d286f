"""Compiled code is cached where it can be, and a machine without such a place still works."""

import os
import re
from pathlib import Path

import numba
import pytest

from pipelines import jit
from pipelines.views import kernel_cpu, sample

ROOT = Path(__file__).resolve().parents[2]


def doubled(x):
    return 2 * x


@pytest.fixture
def unwritable(monkeypatch, tmp_path):
    """Leave numba only the folder that it is given, as for a user without a home."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(jit.tempfile, "gettempdir", lambda: str(tmp_path))
    jit.private_folder.cache_clear()
    yield tmp_path
    jit.private_folder.cache_clear()


def compile_twice():
    return [jit.njit_cached("int64(int64)")(doubled) for _ in range(2)]


def test_without_a_cache_folder_a_private_one_is_used_and_said_once(unwritable, caplog):
    made = compile_twice()
    assert [one(4) for one in made] == [8, 8]
    assert sum(made[1].stats.cache_hits.values()) == 1, "the second is read from the folder"
    folder = unwritable / f"fastssl-numba-{os.getuid()}"
    assert list(folder.glob("**/*.nbi")) and folder.stat().st_mode & 0o777 == 0o700
    assert len(caplog.messages) == 1 and str(folder) in caplog.messages[0]
    assert not numba.config.CACHE_DIR, "the setting of the process is as before"


def open_to_others(folder):
    folder.mkdir()
    folder.chmod(0o777)


@pytest.mark.parametrize(
    "spoil", [open_to_others, Path.touch, lambda folder: folder.symlink_to("/tmp")]
)
def test_a_folder_that_others_may_write_to_is_not_used(unwritable, caplog, spoil):
    folder = unwritable / f"fastssl-numba-{os.getuid()}"
    spoil(folder)
    assert [one(4) for one in compile_twice()] == [8, 8]
    assert len(caplog.messages) == 1 and "NUMBA_CACHE_DIR" in caplog.messages[0]
    assert folder.is_symlink() or folder.is_file() or not list(folder.iterdir())


@pytest.mark.parametrize(
    ("function", "names"),
    [(kernel_cpu.views, ("kernel_cpu_ops.py", "ops.py")), (sample._draw, ("ops.py",))],
)
def test_cached_code_is_keyed_by_the_other_files_that_are_compiled_into_it(function, names):
    folder = ROOT / "pipelines" / "views"
    closed_over = [cell.cell_contents for cell in function.py_func.__closure__]
    assert closed_over == [jit.stamp(*(folder / name for name in names))]


def test_nothing_else_uses_numbas_cache():
    for path in ROOT.glob("pipelines/**/*.py"):
        if path.name != "jit.py":
            assert not re.search(r"\bcache=True", path.read_text().replace("os_cache", "")), path
