"""A sweep's YAML file → its cells, every one of them checked before the first is started.

    config: digits                    # what all cells start from, unless a cell names its own
    set: {steps: 500}                 # keys of all cells
    grid:                             # a product; a list of products makes an irregular table
      algorithm: [fixmatch, flexmatch]
      labels: [40, 100]
      seed: [0, 1, 2]
    exclude:                          # combinations to leave out
      - {algorithm: fixmatch, labels: 100}
    cells:                            # further cells by name; a list in one is a product too
      everything: {algorithm: fullysupervised, labels: all}

A cell that names no configuration takes the one of its `data`.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastssl.config.messages import nearest
from fastssl.config.resolve import FOLDER, ResolvedConfig, find, load, read_yaml
from fastssl.errors import ConfigError

KEYS = ("name", "config", "set", "grid", "exclude", "cells")
FIRST = ("config", "data", "labels", "algorithm")  # the order of a cell's name; the seed is last


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep: its name, its configuration and the keys laid over it."""

    name: str
    config: str
    keys: dict[str, Any]
    resolved: ResolvedConfig

    def words(self) -> list[str]:
        """Return the keys as one types them."""
        return [f"{key}={spell(value)}" for key, value in self.keys.items()]


def find_sweep(name: str) -> Path:
    """Find the file that a path or the name of a shipped sweep means."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = {p.stem: p for p in sorted((FOLDER / "paper").glob("*.yaml"))}
    stem = name.removeprefix("paper/").removesuffix(".yaml")
    if stem in shipped:
        return shipped[stem]
    hint = nearest(stem, list(shipped)) or f"; there are: {', '.join(shipped)}"
    raise ConfigError(f"no sweep is named {name!r}{hint}", "give the path of a YAML file")


def read(path: Path) -> tuple[str, list[Cell]]:
    """Return the name of a sweep and its cells; all mistakes of all cells are told at once."""
    content = read_yaml(path)
    unknown = [f"unknown key {key}{nearest(key, list(KEYS))}" for key in content if key not in KEYS]
    if unknown:
        raise ConfigError(f"{path.name}: {'; '.join(unknown)}", f"take only: {', '.join(KEYS)}")
    wanted = [item for item in expand(content, path) if not excluded(item[1], content, path)]
    if not wanted:
        raise ConfigError(f"{path.name} holds no cell", "add a grid or cells to it")
    twice = sorted({n for n, _ in wanted if [name for name, _ in wanted].count(n) > 1})
    if twice:
        raise ConfigError(
            f"{path.name} has two cells named {twice[0]!r}", "let their keys or names differ"
        )
    return str(content.get("name", path.stem)), check(wanted, content, path)


def expand(content: dict[str, Any], path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Multiply every grid out; return (name, keys) pairs in the order of the file."""
    common = mapping(content.get("set"), "set", path)
    grids = content.get("grid") or []
    found = []
    for grid in grids if isinstance(grids, list) else [grids]:
        for keys in product(mapping(grid, "grid", path)):
            found.append((label(keys), {**common, **keys}))
    for name, given in mapping(content.get("cells"), "cells", path).items():
        listed = mapping(given, f"cells.{name}", path)
        several = [key for key, value in listed.items() if isinstance(value, list)]
        for keys in product(listed):
            parts = [str(name), label({key: keys[key] for key in several})]
            found.append(("-".join(part for part in parts if part), {**common, **keys}))
    return [(safe(name), keys) for name, keys in found]


def mapping(value: Any, what: str, path: Path) -> dict[str, Any]:
    """Return a section that must be a mapping, or {} where it is absent."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{path.name}: {what} does not hold `key: value` lines", "mend the file")
    return value


def product(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of the listed values; one value alone is a list of one."""
    axes = [value if isinstance(value, list) else [value] for value in grid.values()]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*axes)]


def label(keys: dict[str, Any]) -> str:
    """Name a cell by its keys: cifar10-40-fixmatch-threshold=0.9-s0."""
    parts = [spell(keys[key]) for key in FIRST if key in keys]
    rest = {k: v for k, v in keys.items() if k not in (*FIRST, "seed")}
    parts += [f"{key.removeprefix('algo.')}={spell(value)}" for key, value in rest.items()]
    parts += [f"s{keys['seed']}"] if "seed" in keys else []
    return "-".join(parts)


def spell(value: Any) -> str:
    """Return a value as it is typed in the shell and in YAML."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def safe(name: str) -> str:
    """Return a name that is one folder on every system."""
    return re.sub(r"[^\w.=+-]", "_", name).lstrip(".") or "cell"


def excluded(keys: dict[str, Any], content: dict[str, Any], path: Path) -> bool:
    """Tell whether a combination is to be left out."""
    rules = content.get("exclude") or []
    for rule in rules if isinstance(rules, list) else [rules]:
        wanted = mapping(rule, "exclude", path)
        lists = {k: v if isinstance(v, list) else [v] for k, v in wanted.items()}
        if lists and all(key in keys and keys[key] in values for key, values in lists.items()):
            return True
    return False


def check(wanted: list[tuple[str, dict[str, Any]]], content: Any, path: Path) -> list[Cell]:
    """Load the configuration of every cell; raise one error for all that is wrong."""
    cells: list[Cell] = []
    problems: dict[str, str] = {}
    for name, given in wanted:
        keys = dict(given)
        config = keys.pop("config", content.get("config", keys.get("data")))
        try:
            if config is None:
                raise ConfigError("no configuration is named", "add `config: NAME` to the sweep")
            config = beside(str(config), path)
            cells.append(Cell(name, config, keys, load(config, dict(keys))))
        except ConfigError as error:
            problems.setdefault(error.what, name)
    if problems:
        lines = "".join(f"\n    {name}: {what}" for what, name in problems.items())
        raise ConfigError(f"{path.name} has cells that can't run:{lines}", "mend the file")
    return cells


def beside(config: str, path: Path) -> str:
    """Return a configuration's name, or its path: one beside the sweep's file comes first."""
    near = path.parent / config
    if near.is_file():
        return str(near)
    find(config)
    return config
