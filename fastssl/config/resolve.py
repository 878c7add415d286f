"""From a name or file and `key=value` overrides to one checked configuration.

Later wins: default, then the file's `base` if it names one, then the file, then the overrides.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from fastssl import plugins
from fastssl.algorithms import ALGORITHMS, find_algorithm
from fastssl.config import renamed
from fastssl.config.messages import Problem, brief, describe, nearest, raise_all
from fastssl.config.schema import RunConfig
from fastssl.config.yaml_files import parse_yaml, read_yaml
from fastssl.errors import ConfigError, UserError

if TYPE_CHECKING:
    from fastssl.algorithms import Algorithm, Settings

# The shipped configurations: fastssl/configs in an installed package, ./configs in a checkout.
_PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = next(p for p in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if p.is_dir())
CONFIG = "config.yaml"  # of a run folder
RUN_FILES = ("environment.json", "checkpoints", "summary.json", "metrics.jsonl")  # the others
MANY = 30  # keys in one file
ALGORITHM_SECTION = "algorithms"  # of a file: settings for whichever algorithm is chosen
BASE = "base"  # of a file: the shipped configuration whose values it changes
SWEEP = re.compile(r"^(grid|cells):", re.MULTILINE)  # in the file of a sweep; see sweep/grid.py


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A checked configuration, its algorithm, and where each value came from."""

    config: RunConfig
    algorithm: Algorithm
    origins: dict[str, str]  # flat key -> file name or "command line"; absent for a default

    @property
    def settings(self) -> Settings:
        """Settings of the algorithm."""
        return self.config.algo

    def as_dict(self) -> dict[str, Any]:
        """Return the content of config.yaml: every key with its value."""
        return self.config.model_dump()


def load(
    name: str | Path,
    overrides: list[str] | dict[str, Any] | None = None,
    *,
    trust_code: bool = False,
    complete: bool = True,
) -> ResolvedConfig:
    """Load a configuration by name or path and apply `key=value` overrides (or a dict of them).

    Code that a run folder names is refused, unless `trust_code`; code that the overrides name was
    chosen by the user. A configuration that is not `complete` may lack a store.
    """
    path = find(str(name))
    file = plugins.absolute_paths(flatten(read_yaml(path)))
    given = overrides if isinstance(overrides, dict) else parse_overrides(overrides or [])
    given = plugins.absolute_paths(flatten(given))
    # A folder given in place of a file is a run's, and so is a copy of its config.yaml, which holds
    # every key as no person writes it.
    of_a_run = path == Path(name) / CONFIG or len(RunConfig.model_fields.keys() & file) > MANY
    chosen = {key: value for key, value in file.items() if key not in given}
    check_code(chosen, path, of_a_run=of_a_run, trust_code=trust_code)
    written_by_us = path.name == CONFIG and in_run_folder(path)
    problems = renamed.old_names(given if written_by_us else {**file, **given})
    values, origins = combine(layers(path.name, renamed.translate(file)), renamed.translate(given))
    algorithm = values["algorithm"]
    if complete and values.get("data") == "own" and values.get("store") is None:
        fix = "type store=FOLDER; `fastssl convert` makes one"
        problems.append(Problem("data=own needs a store", fix))
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        problems += describe(error, list(RunConfig.model_fields))
    known = isinstance(algorithm, str) and algorithm in ALGORITHMS
    where = f"{path.name} and the command line" if given else path.name
    raise_all(problems, where, algorithm if known else "")
    return ResolvedConfig(config, find_algorithm(algorithm), origins)


def check_code(
    values: dict[str, Any], path: Path, *, of_a_run: bool = False, trust_code: bool
) -> None:
    """Raise if a file may be somebody else's and its `values` name code that is not trusted.

    A configuration that the user wrote may name code. One in a run folder may not. Code in a run
    folder is not the user's either, whoever names it.
    """
    files = plugins.code_files(values)
    of_a_run = of_a_run or in_run_folder(path)
    foreign = {key: values[key] for key in files if of_a_run or in_run_folder(files[key])}
    plugins.require_trust(foreign, path, trust_code=trust_code)


def in_run_folder(path: Path) -> bool:
    """Return True if a file is in a run folder or below one, or a link leads there."""
    near = [path.absolute().parent, path.resolve().parent]
    far = [folder for one in near for folder in one.parents if (folder / CONFIG).exists()]
    return any((folder / name).exists() for folder in near + far for name in RUN_FILES)


def layers(name: str, file: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and flat keys of a file and of what it is based on, the file last."""
    if BASE not in file:
        return [(name, file)]
    base, known = file[BASE], shipped_files(sweeps=False)
    if not isinstance(base, str) or base not in known:
        raise ConfigError(
            f"base is {brief(base)}{nearest(base, list(known))}; expected the name of a shipped "
            "configuration",
            "type `fastssl list configs`",
        )
    path = known[base]
    return [*layers(path.name, flatten(read_yaml(path))), (name, file)]


def combine(
    files: list[tuple[str, dict[str, Any]]], given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay flat overrides over the flat keys of files; return nested values and their origins."""
    default = RunConfig.model_fields["algorithm"].default
    names = [keys["algorithm"] for _, keys in files if "algorithm" in keys]
    algorithm = given.get("algorithm", names[-1] if names else default)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, keys in files:
        sections = keys.get(ALGORITHM_SECTION)
        section = sections.get(registered_name(algorithm)) if isinstance(sections, dict) else None
        section = flatten({"algo": section}) if isinstance(section, dict) else {}
        own = {key: value for key, value in keys.items() if key not in (ALGORITHM_SECTION, BASE)}
        # Settings in the file belong to the file's algorithm; another one chosen elsewhere must
        # not inherit them.
        if algorithm != keys.get("algorithm", algorithm):
            own = {key: value for key, value in own.items() if key.split(".")[0] != "algo"}
        values |= section | own
        origins |= dict.fromkeys(section, f"{name} ({ALGORITHM_SECTION})")
        origins |= dict.fromkeys(own, name)
    origins |= dict.fromkeys(given, "command line")
    return nest({**values, "algorithm": algorithm, **given}), origins


def registered_name(algorithm: Any) -> str:
    """Return the name of an algorithm, also of one from a file; "" for one that does not exist."""
    try:
        return find_algorithm(algorithm).name if isinstance(algorithm, str) else ""
    except UserError:  # reported when the whole configuration is checked
        return ""


def saved_values(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.yaml of a run as flat keys, under today's names if 0.1.0 wrote it.

    A key that an earlier version did not have gets its default: the run was made with that.
    """
    fields = RunConfig.model_fields
    defaults = {key: fields[key].default for key in fields if key != "algo"}
    return defaults | renamed.translate(flatten(config))


def find(name: str) -> Path:
    """Return the YAML file of a shipped name, a run folder or a path."""
    shipped = FOLDER / f"{name}.yaml"
    if "/" not in name and os.sep not in name and shipped.is_file():
        return shipped
    path = Path(name)
    if path.is_dir() and (path / CONFIG).is_file():
        return path / CONFIG
    if path.is_file():
        return path
    if name in available():  # one in a folder, such as usb/cifar100
        return shipped
    if "=" in name:
        raise ConfigError(
            f"{name!r} stands in the place of the configuration's name",
            f"type the name first, then the overrides: digits {name}",
        )
    if name in shipped_files(sweeps=True):
        raise ConfigError(f"{name} is a sweep, not a configuration", f"type `fastssl sweep {name}`")
    names = available()
    hint = nearest(name, names) or f"; there are: {', '.join(names)}"
    raise ConfigError(
        f"no configuration is named {name!r}{hint}",
        "type `fastssl list configs`, or give the path of a YAML file",
    )


def available() -> list[str]:
    """Return the names of the configurations that ship with fastssl."""
    return list(shipped_files(sweeps=False))


def shipped_files(*, sweeps: bool) -> dict[str, Path]:
    """Return the YAML files that ship with fastssl by name: the sweeps, or the configurations."""
    return {
        path.relative_to(FOLDER).with_suffix("").as_posix(): path
        for path in sorted(FOLDER.glob("**/*.yaml"))
        if bool(SWEEP.search(path.read_text(encoding="utf-8"))) == sweeps
    }


def parse_overrides(overrides: list[str]) -> dict[str, Any]:
    """Turn `key=value` overrides into a dict; values are read as YAML, so 3 is a number."""
    found: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"{override!r} is not key=value", "type it as steps=1000")
        try:
            found[key.strip()] = parse_yaml(text)
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            found[key.strip()] = text
    return found


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn {"algo.threshold": 1} into {"algo": {"threshold": 1}}."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        inner = key.removeprefix("algo.")
        if inner == key:
            found[key] = value
        elif isinstance(found.setdefault("algo", {}), dict):  # else algo=7, which is refused later
            found["algo"][inner] = value
    return found


def flatten(nested: dict[str, Any]) -> dict[str, Any]:
    """Turn {"algo": {"threshold": 1}} into {"algo.threshold": 1}."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if key == "algo" and (value is None or isinstance(value, dict)):
            found |= {f"algo.{inner}": item for inner, item in (value or {}).items()}
        else:
            found[key] = value
    return found
