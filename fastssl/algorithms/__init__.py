"""Every algorithm, one file each; a file is registered by being here."""

from fastssl.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    DatasetInfo,
    Nets,
    Settings,
    State,
    StepOutput,
)
from pipelines.registry import import_all

import_all(__name__)

__all__ = ["ALGORITHMS", "Algorithm", "DatasetInfo", "Nets", "Settings", "State", "StepOutput"]
