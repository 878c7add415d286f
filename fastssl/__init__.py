"""fastssl: image classifiers from a handful of labels, with data that never waits.

The verbs of the command are functions here: `auto`, `train`, `probe`, `choose`, `load`, `evaluate`,
`convert`, `label`, `export`, `profile`, `make_report`, `draw_views`, `run_sweep`. A mistake of the
caller raises a `UserError`: `ConfigError`, `DataError`, `DivergedError` or `ResourceError`. The
functions import what they need when they are called, so that `import fastssl` costs next to
nothing.
"""

from fastssl.api import (
    auto,
    choose,
    convert,
    draw_views,
    evaluate,
    export,
    label,
    load,
    make_report,
    probe,
    profile,
    run_sweep,
    train,
)
from fastssl.version import __version__
from pipelines.errors import ConfigError, DataError, DivergedError, ResourceError, UserError

__all__ = [
    "ConfigError",
    "DataError",
    "DivergedError",
    "ResourceError",
    "UserError",
    "__version__",
    "auto",
    "choose",
    "convert",
    "draw_views",
    "evaluate",
    "export",
    "label",
    "load",
    "make_report",
    "probe",
    "profile",
    "run_sweep",
    "train",
]
