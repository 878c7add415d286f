"""What there is to choose from; needs no torch."""

from __future__ import annotations

from typing import Any

from fastssl import plugins
from fastssl.config.messages import nearest
from fastssl.config.resolve import ResolvedConfig, available, find, flatten
from fastssl.errors import ConfigError

KINDS = ("algorithms", "datasets", "models", "readers", "configs")


def rows(kind: str) -> list[dict[str, Any]]:
    """Return the table of one kind."""
    makers = {
        "algorithms": algorithms,
        "datasets": datasets,
        "models": models,
        "readers": readers,
        "configs": configs,
    }
    if kind not in makers:
        raise ConfigError(
            f"there is no list of {kind!r}{nearest(kind, list(KINDS))}",
            f"type one of: {', '.join(KINDS)}",
        )
    return makers[kind]() + offered(kind)


def offered(kind: str) -> list[dict[str, Any]]:
    """List what installed packages add by entry points."""
    single = {"algorithms": "algorithm", "datasets": "data", "models": "model"}.get(kind)
    found = plugins.installed(single) if single else []
    return [{"name": name, "what": f"from the package {package}"} for name, package in found]


def algorithms() -> list[dict[str, Any]]:
    """List every algorithm with its views and forward passes."""
    from fastssl.algorithms import ALGORITHMS

    found = [ALGORITHMS[name] for name in ALGORITHMS]
    return [
        {
            "name": a.name,
            "what": a.summary,
            "views": " + ".join(a.views.values()) or "-",
            "forward passes": a.forwards,
        }
        for a in found
    ]


def datasets() -> list[dict[str, Any]]:
    """List the table of data sets."""
    from pipelines.datasets import DATASETS

    found = [DATASETS[name] for name in DATASETS]
    return [
        {
            "name": d.name,
            "classes": d.classes,
            "train": d.train,
            "test": d.test,
            "size": d.size,
            "what": d.description,
        }
        for d in found
    ]


def models() -> list[dict[str, Any]]:
    """List the networks by name."""
    from fastssl.models import MODELS

    return [{"name": name, "what": what} for name, what in sorted(MODELS.items())]


def readers() -> list[dict[str, Any]]:
    """List the readers and whether each can be used here."""
    from pipelines.readers import READERS

    found = [READERS[name] for name in READERS]
    return [
        {"name": r.name, "installed": "yes" if r.installed else "no", "what": r.summary}
        for r in found
    ]


def configs() -> list[dict[str, Any]]:
    """List the shipped configurations with their first line."""
    return [
        {"name": name, "what": find(name).read_text().splitlines()[0].lstrip("# ")}
        for name in available()
    ]


def configuration(resolved: ResolvedConfig) -> list[dict[str, Any]]:
    """Return every key with its value, where it came from, and its sentence."""
    values = flatten(resolved.as_dict())
    if values["ratio"] is None:
        values["ratio"] = resolved.algorithm.ratio
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
