"""What a run wrote down, as typed records.

Files may be damaged, edited or of another version. A field whose value makes no sense reads as
missing, so that the rest of a report needs no checks of its own.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, Field, StrictInt

from pipelines.text import for_terminal


def number(value: Any) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def numbers(value: Any) -> list[float | None]:
    """Return a list of finite numbers, with None for each item that is not one."""
    return [number(item) for item in value] if isinstance(value, list) else []


def exit_code(value: Any) -> int | None:
    """Return an exit code, and None for anything else."""
    return value if isinstance(value, int) else None


def short_text(value: Any) -> str:
    """Return the beginning of a text without control characters, and "" for anything else."""
    return for_terminal(value[:300]) if isinstance(value, str) else ""


def square_matrix(value: Any) -> list[list[float]] | None:
    """Return a matrix of numbers with as many rows as columns, and None for anything else."""
    if not isinstance(value, list):
        return None
    rows = [numbers(row) for row in value]
    whole = all(len(row) == len(rows) and None not in row for row in rows)
    return value if whole else None


Number = Annotated[float | None, BeforeValidator(number)]
Numbers = Annotated[list[float | None], BeforeValidator(numbers)]


class MetricsLine(BaseModel):
    """A line of metrics.jsonl, of training or of an evaluation; errors in percent."""

    step: Annotated[StrictInt, Field(ge=0, le=2**53)]
    seconds: Number = None  # since the run began, interruptions aside
    loss: Number = None
    # Of evaluations:
    error: Number = None
    validation_error: Number = None
    top5_error: Number = None
    precision: Number = None
    recall: Number = None
    f1: Number = None
    auc: Number = None
    ece: Number = None
    class_accuracy: Numbers = []
    # Tables of the algorithm, by class: thresholds, and how many unlabeled images have each class
    # as their last confident pseudo-label.
    thresholds: Numbers = Field([], validation_alias=AliasPath("tables", "thresholds"))
    counts: Numbers = Field([], validation_alias=AliasPath("tables", "counts"))
    confusion: Annotated[list[list[Any]] | None, BeforeValidator(square_matrix)] = None
    # Of training:
    trusted: Number = None
    pseudo_accuracy: Number = Field(None, alias="pseudo/accuracy")
    pseudo_class_coverage: Numbers = []
    pseudo_class_accuracy: Numbers = []
    images_per_s: Number = Field(None, alias="speed/images_per_s")
    data_wait: Number = Field(None, alias="speed/data_wait")

    @property
    def accuracy(self) -> float | None:
        """The top-1 accuracy of an evaluation, in percent."""
        return None if self.error is None else 100 - self.error


class Summary(BaseModel):
    """summary.json of a run."""

    status: Annotated[str, BeforeValidator(short_text)] = ""
    exit: Annotated[int | None, BeforeValidator(exit_code)] = None
    what: Annotated[str, BeforeValidator(short_text)] = "no reason was recorded"
    best_error: Number = None
    median_error: Number = None
    seconds_per_step: Number = None
    images_per_s: Number = None
    data_wait: Number = None
