"""A table of named things of one kind, and the import that fills it."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar

from pipelines.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Named things of one kind; a name that is not there is answered with the nearest one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T, *, replace: bool = False) -> T:
        """Register `item`; a name registered twice is a mistake, unless `replace`."""
        if name in self._items and not replace:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> T:
        """Return what is registered under `name`."""
        if name in self:
            return self._items[name]
        near = get_close_matches(str(name), self._items, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(self)}"
        raise ConfigError(f"no {self.kind} is named {name!r}; there are: {', '.join(self)}", hint)

    def __contains__(self, name: object) -> bool:
        """Return True if `name` is registered."""
        return isinstance(name, str) and name in self._items

    def __iter__(self) -> Iterator[str]:
        """Walk the names in alphabetical order."""
        return iter(sorted(self._items))

    def __repr__(self) -> str:
        return f"<{self.kind}s: {', '.join(self)}>"

    def __len__(self) -> int:
        """Count the names."""
        return len(self._items)


def import_all(package: str) -> None:
    """Import every module of a package, so that a new file needs no list entry.

    An import that fails raises here: an algorithm that is silently missing is worse than a
    program that does not start.
    """
    path = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")
