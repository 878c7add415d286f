"""Marks for tests that need an optional package: without it they are skipped, with the reason."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from pipelines.extras import import_problem

PACKAGES = {"dali": ("nvidia.dali",), "onnx": ("onnx", "onnxscript", "onnxruntime")}
# The formats of stores that can be written here; tar shards need no package.
INSTALLED_FORMATS = ("ffcv", "dali") if not import_problem("ffcv") else ("dali",)

# What torch.compile calls for code of the CPU; a machine for the plain package may have none.
COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
needs_compiler = pytest.mark.skipif(not shutil.which(COMPILER), reason=f"there is no {COMPILER}")


def needs(*extras: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where a package of these extras cannot be imported."""
    packages = [package for extra in extras for package in PACKAGES.get(extra, (extra,))]
    problems = [f"{package} {why}" for package in packages if (why := import_problem(package))]
    return pytest.mark.skipif(bool(problems), reason=", ".join(problems))


def each(*cases: str | Sequence[Any]) -> list[Any]:
    """Return the cases of a `parametrize`, each marked by the extra that is its first value."""
    rows = [(case,) if isinstance(case, str) else tuple(case) for case in cases]
    core = ("resident", "pt2")  # a reader and a format that need no extra
    return [pytest.param(*row, marks=() if row[0] in core else needs(row[0])) for row in rows]
