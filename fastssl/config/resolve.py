"""From a name, a file and `key=value` words to one checked configuration."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

import configs
from fastssl import models, plugins
from fastssl.config.messages import brief, describe, nearest, raise_all
from fastssl.config.schema import RunConfig
from fastssl.errors import ConfigError

if TYPE_CHECKING:
    from fastssl.algorithms.base import Algorithm

FOLDER = Path(configs.__path__[0])
ALGORITHM_SECTION = "algorithms"  # settings for whichever algorithm is chosen
LARGEST = 2**16  # bytes of a file that may be a configuration; parsing takes seconds a megabyte


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A configuration, its algorithm's settings, and where each value came from."""

    config: RunConfig
    algorithm: Algorithm
    settings: BaseModel
    origins: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return what config.yaml holds: every value, the algorithm's included."""
        return {**self.config.model_dump(), "algo": self.settings.model_dump()}


def load(name: str | Path, words: list[str] | dict[str, Any] | None = None) -> ResolvedConfig:
    """Load a configuration by name or path and apply `key=value` words (or a dict of them)."""
    path = find(str(name))
    given = plugins.absolute_paths(read_yaml(path))
    sections = given.pop(ALGORITHM_SECTION, None) or {}
    typed = words if isinstance(words, dict) else parse_overrides(words or [])
    typed = plugins.absolute_paths(nest(typed))
    origin = path.name
    origins = dict.fromkeys(flatten(given), origin)
    merged = merge(given, typed)
    name_of = merged.get("algorithm", RunConfig.model_fields["algorithm"].default)
    where = f"{origin} and the command line" if typed else origin
    algorithm = chosen_algorithm(name_of, merged, where)
    # Settings in the file belong to the file's algorithm; another one chosen in the shell must
    # not inherit them.
    kept = (
        typed.get("algo", {}) if name_of != given.get("algorithm", name_of) else merged.get("algo")
    )
    section = sections.get(algorithm.name) if isinstance(sections, dict) else None
    section = section if isinstance(section, dict) else {}
    origins |= {f"algo.{key}": f"{origin} (algorithms)" for key in section}
    settings = merge(section, kept or {}) if isinstance(kept or {}, dict) else kept
    origins |= dict.fromkeys(flatten(typed), "command line")
    problems, config = check_run(merged)
    more, checked = check_settings(algorithm, settings)
    raise_all(problems + more, where, name_of)
    assert config is not None and checked is not None
    return ResolvedConfig(config.model_copy(update={"algo": settings}), algorithm, checked, origins)


def find_algorithm(name: Any) -> Algorithm:
    """Return an algorithm of the registry by its name, or load it from a file or entry point."""
    from fastssl.algorithms import ALGORITHMS

    if not isinstance(name, str):
        raise ConfigError(f"no algorithm is named {brief(name)}", "type algorithm=flexmatch")
    if name in ALGORITHMS or not plugins.is_plugin("algorithm", name):
        return ALGORITHMS[name]  # raises with the nearest name
    loaded = plugins.load("algorithm", name)
    own = [ALGORITHMS[one] for one in ALGORITHMS]
    if isinstance(loaded, ModuleType):
        own = [one for one in own if one.step.__module__ == loaded.__name__]
    else:
        own = [one for one in own if one.step is loaded]
    if len(own) != 1:
        raise ConfigError(
            f"algorithm={name} registers {len(own)} algorithms, not one",
            "decorate one step function with @algorithm, or type algorithm=FILE.py:STEP",
        )
    return own[0]


def chosen_algorithm(name: Any, values: dict[str, Any], where: str) -> Algorithm:
    """Look the algorithm up; one that is not there is told with every other mistake."""
    try:
        return find_algorithm(name)
    except ConfigError as error:
        others, _ = check_run(values)
        if others:
            raise_all([f"{error.what}: {error.fix}", *others], where)
        raise


def check_run(values: dict[str, Any]) -> tuple[list[str], RunConfig | None]:
    """Check everything but the algorithm's settings; return every problem."""
    problems: list[str] = []
    config = None
    try:
        config = RunConfig.model_validate({**values, "algo": {}})
    except ValidationError as error:
        problems += describe(error, list(RunConfig.model_fields), "")
    problems += unknown_names(values)
    return problems + (impossible(config) if config else []), config


def check_settings(algorithm: Algorithm, settings: Any) -> tuple[list[str], BaseModel | None]:
    """Check the settings of the algorithm; return every problem."""
    if not isinstance(settings, dict):
        return [f"algo is {brief(settings)}; wants keys such as algo.threshold"], None
    try:
        return [], algorithm.config.model_validate(settings)
    except ValidationError as error:
        return describe(error, list(algorithm.config.model_fields), "algo."), None


def unknown_names(values: dict[str, Any]) -> list[str]:
    """Return which data set or model does not exist; what is no text was told before."""
    from pipelines.datasets import DATASETS

    problems: list[str] = []
    names = [*DATASETS, "own"]
    data, model = values.get("data"), values.get("model")
    if isinstance(data, str) and data not in names and not is_outside("data", data, problems):
        problems.append(f"no data set is named {brief(data)}{nearest(data, names)}")
    if isinstance(model, str):
        try:
            models.parse(model)
        except ConfigError as error:
            if not is_outside("model", model, problems):
                problems.append(f"{error.what}: {error.fix}")
    return problems


def impossible(config: RunConfig) -> list[str]:
    """Return what can't be, given the table of data sets."""
    from pipelines.datasets import DATASETS

    if config.data == "own" and config.store is None:
        return ["data=own needs a store: type store=FOLDER (made by `fastssl convert`)"]
    if config.data in DATASETS and isinstance(config.labels, int):
        classes = DATASETS[config.data].classes
        if config.labels % classes and config.imbalance == 1 and not config.label_file:
            return [f"labels is {config.labels}, which does not divide by {classes} classes"]
    return []


def is_outside(kind: str, name: str, problems: list[str]) -> bool:
    """Tell whether a name stands for a file or an entry point, noting what is wrong with it."""
    try:
        return plugins.is_plugin(kind, name)
    except ConfigError as error:
        problems.append(f"{error.what}: {error.fix}")
        return True


def find(name: str) -> Path:
    """Find the YAML file that a name or a path means."""
    shipped = FOLDER / f"{name}.yaml"
    if "/" not in name and os.sep not in name and shipped.is_file():
        return shipped
    path = Path(name)
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml"
    if path.is_file():
        return path
    if "=" in name:
        raise ConfigError(
            f"{name!r} stands where the configuration's name belongs",
            f"name it first, then settings: digits {name}",
        )
    names = available()
    hint = nearest(name, names) or f"; there are: {', '.join(names)}"
    raise ConfigError(
        f"no configuration is named {name!r}{hint}",
        "type `fastssl list configs`, or give the path of a YAML file",
    )


def available() -> list[str]:
    """Return the names of the configurations that ship with fastssl."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        double = {str(key) for key, count in Counter(keys).items() if count > 1}
        if double:
            raise yaml.constructor.ConstructorError(
                None, None, f"{', '.join(sorted(double))} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold `key: value` lines."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ConfigError(
                f"{path} has {size:,} bytes, too many for a configuration", "give another file"
            )
        loader = _Loader(path.read_text(encoding="utf-8"))
        found = loader.get_single_data()  # type: ignore[no-untyped-call]
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        line = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} is not YAML: {line}", "mend the file") from error
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}", "check the path") from error
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{path} does not hold `key: value` lines", "mend the file")
    return found


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Turn `key=value` words into a dict; values are read as YAML, so 3 is a number."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r} is not key=value", "type it as steps=1000")
        try:
            found[key.strip()] = yaml.safe_load(text) if text.strip() else None
        except (yaml.YAMLError, ValueError, RecursionError):
            found[key.strip()] = text
    return found


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn {"algo.threshold": 1} into {"algo": {"threshold": 1}}."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        if key.startswith("algo."):
            found.setdefault("algo", {})[key.removeprefix("algo.")] = value
        else:
            found[key] = value
    return found


def flatten(nested: dict[str, Any]) -> dict[str, Any]:
    """Turn {"algo": {"threshold": 1}} into {"algo.threshold": 1}."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if key == "algo" and isinstance(value, dict):
            found |= {f"algo.{inner}": item for inner, item in value.items()}
        else:
            found[key] = value
    return found


def merge(below: Any, above: dict[str, Any]) -> dict[str, Any]:
    """Lay `above` over `below`; the algorithm's settings are merged key by key."""
    found = dict(below) if isinstance(below, dict) else {}
    for key, value in above.items():
        if key == "algo" and isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = {**found[key], **value}
        else:
            found[key] = value
    return found
