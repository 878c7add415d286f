"""Reads the cells of a sweep from its YAML file; all are checked before the first is trained.

    config: digits                    # base of all cells, unless a cell names its own
    set: {steps: 500}                 # keys of all cells
    grid:                             # a product; a list of products makes an irregular grid
      algorithm: [fixmatch, flexmatch]
      labels: [40, 100]
      seed: [0, 1, 2]
    exclude:                          # combinations to leave out
      - {algorithm: fixmatch, labels: 100}
    cells:                            # further cells by name; lists are multiplied out, too
      everything: {algorithm: fullysupervised, labels: all}

A cell without a configuration takes the one named like its `data`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fastssl import plugins
from fastssl.config.messages import describe, nearest
from fastssl.config.resolve import (
    ResolvedConfig,
    check_code,
    find,
    load,
    parse_overrides,
    shipped_files,
)
from fastssl.config.yaml_files import read_yaml
from fastssl.errors import ConfigError

FIRST = ("config", "data", "labels", "algorithm")  # the order of a cell's name; the seed is last


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


Keys = Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})]
ListOfKeys = Annotated[list[Keys], BeforeValidator(as_list)]


class SweepFile(BaseModel):
    """The content of a sweep's YAML file."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    name: str | None = None
    config: str | None = None
    set: Keys = {}
    grid: ListOfKeys = []
    exclude: ListOfKeys = []
    cells: dict[str, Keys] = {}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep: its name, its configuration and the keys that override it."""

    name: str
    config: str
    keys: dict[str, Any]
    resolved: ResolvedConfig
    trust_code: bool = False  # passed on to its process

    def overrides(self) -> list[str]:
        """Return the keys as key=value, as they are typed on the command line."""
        return [f"{key}={as_typed(value)}" for key, value in self.keys.items()]


def find_sweep(name: str) -> Path:
    """Return the file of a sweep that is given by its path or by the name of a shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    files = shipped_files(sweeps=True).items()
    shipped = {known.removeprefix("paper/"): file for known, file in files}
    short = name.removeprefix("paper/").removesuffix(".yaml")
    if short in shipped:
        return shipped[short]
    hint = nearest(short, list(shipped)) or f"; there are: {', '.join(shipped)}"
    raise ConfigError(f"no sweep is named {name!r}{hint}", "give the path of a YAML file")


def read(path: Path, *, trust_code: bool = False) -> tuple[str, list[Cell]]:
    """Return the name of a sweep and its cells; one error lists the mistakes of all cells."""
    try:
        content = SweepFile.model_validate(read_yaml(path))
    except ValidationError as error:
        keys = list(SweepFile.model_fields)
        problems = "; ".join(problem.what for problem in describe(error, keys))
        fix = f"correct the file; its keys are: {', '.join(keys)}"
        raise ConfigError(f"{path.name}: {problems}", fix) from error
    wanted = [item for item in expand(content) if not excluded(item[1], content.exclude)]
    if not wanted:
        raise ConfigError(f"{path.name} holds no cell", "add a grid or cells to it")
    name, count = Counter(name for name, _ in wanted).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{path.name} has two cells named {name!r}", "let their keys differ")
    return safe(content.name or path.stem), check(wanted, content.config, path, trust_code)


def expand(content: SweepFile) -> list[tuple[str, dict[str, Any]]]:
    """Multiply out every grid; return (name, keys) pairs in the order of the file."""
    found = []
    for grid in content.grid:
        for keys in product(grid):
            found.append((cell_name(keys), {**content.set, **keys}))
    for name, given in content.cells.items():
        several = [key for key, value in given.items() if isinstance(value, list)]
        for keys in product(given):
            parts = [name, cell_name({key: keys[key] for key in several})]
            found.append(("-".join(part for part in parts if part), {**content.set, **keys}))
    return [(safe(name), keys) for name, keys in found]


def product(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of the listed values; a single value counts as a list of one."""
    axes = map(as_list, grid.values())
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*axes)]


def cell_name(keys: dict[str, Any]) -> str:
    """Return the name of a cell, made of its keys: cifar10-40-fixmatch-threshold=0.9-s0."""
    parts = [format_value(keys[key]) for key in FIRST if key in keys]
    rest = {k: v for k, v in keys.items() if k not in (*FIRST, "seed")}
    parts += [f"{key.removeprefix('algo.')}={format_value(value)}" for key, value in rest.items()]
    parts += [f"s{keys['seed']}"] if "seed" in keys else []
    return "-".join(parts)


def format_value(value: Any) -> str:
    """Return a value as it is typed on the command line and in YAML."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def as_typed(value: Any) -> str:
    """Return a value so that the command line reads it as the same one: "123" is no number."""
    text = format_value(value)
    same = parse_overrides([f"key={text}"])["key"] == value
    return text if same else json.dumps(value, ensure_ascii=False)


def safe(name: str) -> str:
    """Return a name that is one folder, and not a hidden one, on every system."""
    return re.sub(r"[^\w.=+-]", "_", name).lstrip(".") or "cell"


def excluded(keys: dict[str, Any], rules: list[dict[str, Any]]) -> bool:
    """Return True if a rule under `exclude` matches a combination of keys."""
    return any(
        all(key in keys and keys[key] in as_list(values) for key, values in rule.items())
        for rule in rules
        if rule
    )


def check(
    wanted: list[tuple[str, dict[str, Any]]], base: str | None, path: Path, trust_code: bool
) -> list[Cell]:
    """Resolve the configuration of every cell; raise one error that lists all problems."""
    cells: list[Cell] = []
    problems: dict[str, str] = {}
    fixes = set()
    for name, given in wanted:
        keys = dict(given)
        config = keys.pop("config", base or keys.get("data"))
        try:
            if config is None:
                raise ConfigError("no configuration is named", "add `config: NAME` to the sweep")
            config = locate_config(str(config), path)
            check_code(plugins.absolute_paths(keys), path, trust_code=trust_code)
            resolved = load(config, dict(keys), trust_code=trust_code)
            cells.append(Cell(name, config, keys, resolved, trust_code))
        except ConfigError as error:
            problems.setdefault(error.what, name)
            fixes.add(error.fix)
    if problems:
        lines = "".join(f"\n    {name}: {what}" for what, name in problems.items())
        fix = fixes.pop() if len(fixes) == 1 else "correct the file"
        raise ConfigError(f"{path.name} has cells that can't run:{lines}", fix)
    return cells


def locate_config(config: str, path: Path) -> str:
    """Return the path of a configuration beside the sweep's file, or the name of a shipped one."""
    near = path.parent / config
    if near.is_file():
        return str(near)
    find(config)  # raises if there is none of that name
    return config
