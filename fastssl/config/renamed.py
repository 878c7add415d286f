"""Keys and values that had another name in version 0.1.0.

A user's file or command line is refused with the new name. What 0.1.0 itself wrote, the
config.yaml of a run folder, is translated, so that the run still evaluates, resumes and reports.
"""

from __future__ import annotations

from typing import Any

from fastssl.config.messages import Problem
from fastssl.config.schema import RunConfig

KEYS = {"micro_batch": "accumulate", "init": "pretrained"}
VALUES = {"algo.prior": {"labelled": "labeled"}}


def translate(flat: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a run's config.yaml, as `flatten` gives them, under today's names."""
    found = {}
    for key, value in flat.items():
        new_key, new_value = _today(key, value) or (key, value)
        found[new_key] = new_value
    return found


def old_names(flat: dict[str, Any]) -> list[Problem]:
    """Return a problem for each old name among keys and values that a user wrote."""
    problems = []
    for key, value in flat.items():
        today = _today(key, value)
        if today is not None:
            new_key, new_value = today
            what = key if key != new_key else f"{key}={value}"
            problems.append(Problem(f"{what} has a new name", f"use {new_key}={new_value}"))
    return problems


def _today(key: str, value: Any) -> tuple[str, Any] | None:
    """Return today's key and value, or None where the name has not changed."""
    if key in KEYS:
        # micro_batch=0 meant "in one part", which is the default of accumulate.
        return KEYS[key], value or RunConfig.model_fields[KEYS[key]].default
    if isinstance(value, str) and value in VALUES.get(key, ()):
        return key, VALUES[key][value]
    return None
