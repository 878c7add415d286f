"""All algorithms, one file each. A file in this folder is registered by being here.

`base` is the contract, `common` holds the functions that several algorithms share. Nothing here
knows configurations, data or the training loop, and importing it does not import torch.
"""

from types import ModuleType

from fastssl import plugins
from fastssl.algorithms.base import (
    ALGORITHMS,
    DECLARED,
    Algorithm,
    DatasetInfo,
    Nets,
    Settings,
    State,
    StepOutput,
)
from fastssl.errors import ConfigError
from pipelines.registry import import_all

import_all(__name__)

from fastssl.algorithms.supervised import step as supervised_step  # noqa: E402

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "DatasetInfo",
    "Nets",
    "Settings",
    "State",
    "StepOutput",
    "find_algorithm",
    "supervised_step",
]


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm of the registry by its name, or load it from a file or entry point."""
    if name in ALGORITHMS or not plugins.is_plugin("algorithm", name):
        return ALGORITHMS[name]  # raises with the nearest name
    loaded = plugins.load("algorithm", name)
    if isinstance(loaded, ModuleType):
        own = [one for one in DECLARED if getattr(one.step, "__globals__", None) is vars(loaded)]
    else:
        own = [one for one in DECLARED if one.step is loaded]
    if len(own) != 1:
        raise ConfigError(
            f"algorithm={name} registers {len(own)} algorithms, not one",
            "decorate one step function with @algorithm, or type algorithm=FILE.py:STEP",
        )
    return own[0]
