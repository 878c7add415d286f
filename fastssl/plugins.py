"""Models, algorithms and data sets from outside the package: a file by its path, or an entry point.

    model=path/to/file.py:build        build(classes) or build(classes, heads) gives an nn.Module
    algorithm=path/to/file.py          a file with one `@algorithm` step function
    data=path/to/file.py:flowers       flowers() gives a `pipelines.sources.Source`

A package does the same under a plain name by entry points of the groups `fastssl.models`,
`fastssl.algorithms` and `fastssl.datasets`. A path is made absolute when it is read, so that the
run's own config.yaml finds the file again from any folder.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastssl.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import nn

    from fastssl.algorithms.base import Algorithm
    from pipelines.store.store import Store

GROUPS = {
    "model": "fastssl.models",
    "algorithm": "fastssl.algorithms",
    "data": "fastssl.datasets",
}
_REFERENCE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[A-Za-z_]\w*))?", re.DOTALL)


def absolute(values: dict[str, Any]) -> dict[str, Any]:
    """Make the paths of files among settings absolute; all else stays as it is."""
    return {key: _absolute(value) if key in GROUPS else value for key, value in values.items()}


def _absolute(value: Any) -> Any:
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    return os.path.abspath(os.path.expanduser(found["path"])) + (found[2] or "")


def short(name: str) -> str:
    """Return a name that is fit for a folder: the file's own, without its path."""
    found = _REFERENCE.fullmatch(name)
    return name if found is None else found["name"] or Path(found["path"]).stem


def known(kind: str, name: str) -> bool:
    """Tell whether a name stands for something outside the package; its file must be there."""
    found = _REFERENCE.fullmatch(name)
    if found is None:
        return entry(kind, name) is not None
    if not Path(found["path"]).is_file():
        raise ConfigError(f"{kind}={name}: there is no such file", "look at its path")
    if kind != "algorithm" and not found["name"]:
        raise ConfigError(f"{kind}={name} names a file alone", f"type {kind}=FILE.py:NAME")
    return True


def entry(kind: str, name: str) -> EntryPoint | None:
    """Return what an installed package offers under a name, if any does."""
    return next(iter(entry_points(group=GROUPS[kind], name=name)), None)


def offered(kind: str) -> list[tuple[str, str]]:
    """Return name and package of everything that installed packages offer."""
    found = entry_points(group=GROUPS[kind])
    return sorted((one.name, one.dist.name if one.dist else one.value) for one in found)


def load(kind: str, name: str) -> Any:
    """Return the module of a bare path, the object of a path with a name, or an entry point's."""
    known(kind, name)
    found = _REFERENCE.fullmatch(name)
    if found is None:
        offer = entry(kind, name)
        assert offer is not None
        try:
            return offer.load()
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
    """Import a Python file by its path, once a process; its folder is not searched for others."""
    name = "fastssl_file_" + re.sub(r"\W", "_", path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickling and decorators look a module up by its name
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
        "mend the file; `python FILE.py` shows the whole traceback",
    )


def algorithm(name: str) -> Algorithm | None:
    """Return the algorithm that a file or an entry point registers; None for a plain name."""
    if not known("algorithm", name):
        return None
    from fastssl.algorithms import ALGORITHMS

    thing = load("algorithm", name)
    module = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    own = [ALGORITHMS[one] for one in ALGORITHMS if ALGORITHMS[one].step.__module__ == module]
    if not isinstance(thing, ModuleType):
        own = [one for one in own if one.step is thing]
    if len(own) != 1:
        raise ConfigError(
            f"algorithm={name} registers {len(own)} algorithms, not one",
            "decorate one step function with @algorithm, or type algorithm=FILE.py:STEP",
        )
    return own[0]


def build_model(name: str, classes: int, heads: Mapping[str, int]) -> nn.Module | None:
    """Build a network from outside; None where the name is not one of those."""
    if not known("model", name):
        return None
    from torch import nn

    build: Callable[..., Any] = load("model", name)
    takes = inspect.signature(build).parameters.values()
    wide = any(one.name == "heads" or one.kind is one.VAR_KEYWORD for one in takes)
    if heads and not wide:
        raise ConfigError(
            f"the algorithm wants the extra heads {', '.join(heads)}, and {name} takes none",
            "give its function an argument `heads`, or choose another algorithm",
        )
    model = build(classes, heads=dict(heads)) if wide else build(classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name} gave a {type(model).__name__}", "return a torch.nn.Module")
    return model


def ensure_store(name: str) -> Store | None:
    """Open the store of a data set from outside, converted at first use; None for other names."""
    if not known("data", name):
        return None
    from pipelines.convert import convert
    from pipelines.sources import Source
    from pipelines.store.manifest import NAME
    from pipelines.store.store import default_place, open_store

    source = load("data", name)()
    if not isinstance(source, Source):
        raise ConfigError(f"{name} gave a {type(source).__name__}", "return a pipelines Source")
    place = default_place(source.name)
    if not (place / NAME).exists():
        convert(source, place, wait=True)
    return open_store(place)
