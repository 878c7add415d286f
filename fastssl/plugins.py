"""Models, algorithms and data sets from outside the package: a file by its path, or an entry point.

    model=path/to/file.py:build        build(classes) or build(classes, heads) returns an nn.Module
    algorithm=path/to/file.py          a file with one `@algorithm` step function
    data=path/to/file.py:flowers       flowers() returns a `pipelines.sources.Source`

An installed package offers the same under a plain name, by entry points of the groups
`fastssl.models`, `fastssl.algorithms` and `fastssl.datasets`. Paths are made absolute when a
configuration is read, so that a run's config.yaml finds the file again from any folder.

This module only finds and imports. What is done with the loaded object is up to the caller:
`config.resolve` (algorithms), `models` and `engine.build_data` (data sets).
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fastssl.errors import ConfigError, UserError

GROUPS = {
    "model": "fastssl.models",
    "algorithm": "fastssl.algorithms",
    "data": "fastssl.datasets",
}
_REFERENCE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[A-Za-z_]\w*))?", re.DOTALL)


def absolute_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with absolute paths in the keys that may name a file."""
    return {key: _absolute(value) if key in GROUPS else value for key, value in values.items()}


def _absolute(value: Any) -> Any:
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    return os.path.abspath(os.path.expanduser(found["path"])) + (found[2] or "")


def short_name(name: str) -> str:
    """Return a name that can be part of a folder's name: no path, no suffix."""
    found = _REFERENCE.fullmatch(name)
    return name if found is None else found["name"] or Path(found["path"]).stem


def is_plugin(kind: str, name: str) -> bool:
    """Return True if a name refers to a file or an entry point; raise if the file is missing."""
    found = _REFERENCE.fullmatch(name)
    if found is None:
        return entry(kind, name) is not None
    if not Path(found["path"]).is_file():
        raise ConfigError(f"{kind}={name}: there is no such file", "check the path")
    if kind != "algorithm" and not found["name"]:
        raise ConfigError(f"{kind}={name} names only a file", f"type {kind}=FILE.py:NAME")
    return True


def entry(kind: str, name: str) -> EntryPoint | None:
    """Return the entry point that an installed package declares under a name, or None."""
    return next(iter(entry_points(group=GROUPS[kind], name=name)), None)


def installed(kind: str) -> list[tuple[str, str]]:
    """Return name and package of every entry point of a kind."""
    found = entry_points(group=GROUPS[kind])
    return sorted((one.name, one.dist.name if one.dist else one.value) for one in found)


def load(kind: str, name: str) -> Any:
    """Return what a name refers to.

    This is the module for FILE.py, its attribute for FILE.py:NAME, and the loaded object for an
    entry point.
    """
    is_plugin(kind, name)
    found = _REFERENCE.fullmatch(name)
    if found is None:
        point = entry(kind, name)
        assert point is not None
        try:
            return point.load()
        except Exception as error:
            raise _failed(f"{kind}={name}", error) from error
    module = load_file(found["path"])
    if not found["name"]:
        return module
    if not hasattr(module, found["name"]):
        raise ConfigError(
            f"{found['path']} has no {found['name']}",
            f"define it there, or type {kind}=FILE.py:NAME with the name it has",
        )
    return getattr(module, found["name"])


@cache
def load_file(path: str) -> ModuleType:
    """Import a Python file by its path, once per process. Its folder is not put on sys.path."""
    name = "fastssl_file_" + re.sub(r"\W", "_", path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look modules up by name
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise _failed(path, error) from error
    return module


def _failed(what: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{what} cannot be imported: {type(error).__name__}: {error}",
        "correct the file; `python FILE.py` shows the whole traceback",
    )
