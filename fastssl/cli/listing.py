"""What there is to choose from; needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastssl import plugins
from fastssl.config.messages import nearest
from fastssl.config.resolve import ResolvedConfig, available, find, flatten
from fastssl.errors import ConfigError


def rows(kind: str) -> list[dict[str, Any]]:
    """Return the table of one kind, with what installed packages add by entry points."""
    if kind not in KINDS:
        raise ConfigError(
            f"there is no list of {kind!r}{nearest(kind, list(KINDS))}",
            f"type one of: {', '.join(KINDS)}",
        )
    make, group = KINDS[kind]
    added = plugins.installed(group) if group else []
    return make() + [{"name": n, "what": f"from the package {package}"} for n, package in added]


def algorithms() -> list[dict[str, Any]]:
    """List every algorithm with its views and forward passes."""
    from fastssl.algorithms import ALGORITHMS

    return [
        {
            "name": one.name,
            "what": one.summary,
            "views": " + ".join(one.views.values()) or "-",
            "forward passes": one.forwards,
        }
        for one in ALGORITHMS.values()
    ]


def datasets() -> list[dict[str, Any]]:
    """List the table of datasets."""
    from pipelines.datasets import DATASETS

    columns = ("name", "classes", "train", "test", "size")
    return [
        {**{column: getattr(one, column) for column in columns}, "what": one.description}
        for one in DATASETS.values()
    ]


def models() -> list[dict[str, Any]]:
    """List the networks by name, the two prefixes, and good choices among those of timm."""
    from fastssl.models import MODELS
    from fastssl.models.backbones import CHOICES, PREFIXES

    rows = [(name, "", "", what) for name, what in sorted(MODELS.items()) + PREFIXES]
    rows += [(n, f"{size:.1f} M", f"{work:.2f}", what) for n, (what, size, work) in CHOICES.items()]
    return [dict(zip(("name", "parameters", "GFLOPs", "what"), row, strict=True)) for row in rows]


def readers() -> list[dict[str, Any]]:
    """List the readers and whether each can be used here."""
    from pipelines.readers import READERS

    return [
        {"name": one.name, "installed": "yes" if one.installed else "no", "what": one.summary}
        for one in READERS.values()
    ]


def configs() -> list[dict[str, Any]]:
    """List the shipped configurations with their first line."""
    return [
        {"name": name, "what": find(name).read_text().splitlines()[0].lstrip("# ")}
        for name in available()
    ]


# kind -> what lists it, and the group of entry points that add to it
KINDS: dict[str, tuple[Callable[[], list[dict[str, Any]]], str]] = {
    "algorithms": (algorithms, "algorithm"),
    "datasets": (datasets, "data"),
    "models": (models, "model"),
    "readers": (readers, ""),
    "configs": (configs, ""),
}


def configuration(resolved: ResolvedConfig) -> list[dict[str, Any]]:
    """Return every key with its value, where it came from, and its sentence."""
    values = flatten(resolved.as_dict())
    if values["ratio"] is None:
        values["ratio"] = resolved.algorithm.ratio
    for key, chosen in resolved.config.averages().items():
        if values[key] == "auto":
            values[key] = "auto: the model's own" if chosen is None else f"auto: {chosen}"
    sentences = {k: f.description for k, f in type(resolved.config).model_fields.items()}
    fields = type(resolved.settings).model_fields
    sentences |= {f"algo.{k}": f.description for k, f in fields.items()}
    return [
        {
            "key": key,
            "value": str(value).lower() if isinstance(value, bool) else value,
            "from": resolved.origins.get(key, "default"),
            "what": " ".join((sentences.get(key) or "").split()),
        }
        for key, value in values.items()
    ]
