"""Models, algorithms and datasets from outside the package: a file by its path, or an entry point.

    model=path/to/file.py:build        build(classes) or build(classes, heads) returns an nn.Module
    algorithm=path/to/file.py          a file with one `@algorithm` step function
    data=path/to/file.py:flowers       flowers() returns a `pipelines.sources.Source`

An installed package offers the same under a plain name, by entry points of the groups
`fastssl.models`, `fastssl.algorithms` and `fastssl.datasets`. Paths are made absolute when a
configuration is read, so that a run's config.yaml finds the file again from any folder.

A file may run only if its user chose it: typed it, or wrote it into a configuration of theirs. One
that a run folder names was chosen by whoever made the run. It needs `--trust-code`, a consent to
the code whose SHA-256 the message shows (`require_trust`).

This module only finds and imports. What is done with the loaded object is up to the caller:
`config.resolve` (algorithms), `models` and `engine.build_data` (datasets).
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fastssl.errors import ConfigError, DataError, UserError

logger = logging.getLogger(__name__)

GROUPS = {
    "model": "fastssl.models",
    "algorithm": "fastssl.algorithms",
    "data": "fastssl.datasets",
}
USER_FILE = "fastssl_file_"  # how the names of modules from users' files begin
LARGEST = 2**28  # bytes of a file with code or labels
_REFERENCE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[A-Za-z_]\w*))?", re.DOTALL)


def absolute_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with absolute paths in the keys that may name a file."""
    return {key: _absolute(value) if key in GROUPS else value for key, value in values.items()}


def _parse(value: Any) -> re.Match[str] | None:
    return _REFERENCE.fullmatch(value) if isinstance(value, str) else None


def _absolute(value: Any) -> Any:
    found = _parse(value)
    if found is None:
        return value
    return os.path.abspath(os.path.expanduser(found["path"])) + (found[2] or "")


def code_files(values: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files with code that settings name, by key."""
    found = {key: _parse(values.get(key)) for key in GROUPS}
    return {key: Path(match["path"]) for key, match in found.items() if match}


def file_hashes(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the files with code or labels that settings name, by key."""
    files = code_files(values)
    if values.get("label_file"):
        files["label_file"] = Path(values["label_file"])
    return {key: sha256(path) for key, path in files.items()}


def same_name(key: str, one: Any, other: Any) -> bool:
    """Return True if two values of a key may differ only in where the file is that they name."""
    if key in ("label_file", "pretrained"):
        return isinstance(one, str) and isinstance(other, str)
    here = Path("file.py")
    files = all(_parse(value) for value in (one, other))
    return files and moved(one, here) == moved(other, here)


def moved(reference: str, path: Path) -> str:
    """Return a reference FILE.py or FILE.py:NAME with another file."""
    found = _parse(reference)
    return str(path) + (found[2] or "" if found else "")


def require_trust(values: Mapping[str, Any], where: Path, *, trust_code: bool) -> None:
    """Raise if settings that somebody else may have written name code and it is not trusted."""
    files = code_files(values)
    if not files:
        return
    shown = "; ".join(f"{key}={path}, SHA-256 {sha256(path)}" for key, path in files.items())
    if not trust_code:
        fix = "read the code, then add --trust-code to run it"
        raise ConfigError(f"{where} names code, which is not run: {shown}", fix)
    logger.warning("running the code that %s names: %s", where, shown)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a user's file."""
    return hashlib.sha256(read_file(path)).hexdigest()


def read_file(path: Path) -> bytes:
    """Return the content of a user's file; a pipe or a device is not read."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file", "check the path")
    try:
        with open(path, "rb") as file:
            found = file.read(LARGEST + 1)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}", "check the path") from error
    if len(found) > LARGEST:
        raise DataError(f"{path} has more than {LARGEST:,} bytes", "give a smaller file")
    return found


def short_name(name: str) -> str:
    """Return a name that can be part of a folder's name: no path, no suffix."""
    found = _parse(name)
    return name if found is None else found["name"] or Path(found["path"]).stem


def is_plugin(kind: str, name: str) -> bool:
    """Return True if a name refers to a file or an entry point; raise if the file is missing."""
    found = _parse(name)
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
    found = _parse(name)
    if found is None:
        point = entry(kind, name)
        assert point is not None
        try:
            return point.load()
        except Exception as error:
            raise _failed(f"{kind}={name}", error) from error
    module = load_file(Path(found["path"]))
    if not found["name"]:
        return module
    if not hasattr(module, found["name"]):
        raise ConfigError(
            f"{found['path']} has no {found['name']}",
            f"define it there, or type {kind}=FILE.py:NAME with the name it has",
        )
    return getattr(module, found["name"])


class _BytesLoader(importlib.abc.SourceLoader):
    """Imports bytes that were read before, so that the code that runs is the code that was hashed.

    Python's own loader would prefer a .pyc beside the file, whose code may be another one.
    """

    def __init__(self, path: Path, source: bytes) -> None:
        self.path = path
        self.source = source

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes | os.PathLike[str]) -> bytes:
        return self.source


def load_file(path: Path) -> ModuleType:
    """Import a Python file, each content of it once. Its folder is not put on sys.path."""
    source = read_file(path)
    name = USER_FILE + hashlib.sha256(source).hexdigest()
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(name, _BytesLoader(path, source))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look modules up by name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, UserError) or not isinstance(error, Exception | SystemExit):
            raise
        raise _failed(str(path), error) from error
    return module


def _failed(what: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{what} cannot be imported: {type(error).__name__}: {error}",
        "correct the file; `python FILE.py` shows the whole traceback",
    )
