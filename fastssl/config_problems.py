"""Mistakes in a configuration, told in words, all at once."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastssl.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError


def nearest(name: object, names: list[str]) -> str:
    """Return " (did you mean …?)" or nothing."""
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def describe(error: ValidationError, names: list[str], prefix: str) -> list[str]:
    """Put each mistake that pydantic found into one sentence, one a key."""
    told: dict[str, str] = {}
    for problem in error.errors():
        place = problem["loc"]
        key = f"{prefix}{place[0]}" if place else ""
        if problem["type"] == "extra_forbidden":
            hint = nearest(place[0], names)
            told[key] = f"unknown key {key}{f' (did you mean {prefix}{hint[15:]}' if hint else ''}"
        elif problem["type"] == "value_error":
            told[key] = str(problem["msg"]).removeprefix("Value error, ")
        else:
            value = repr(problem["input"])
            told.setdefault(key, f"{key} is {value[:80]}; wants: {lower(problem['msg'])}")
    return list(told.values())


def lower(message: str) -> str:
    """Shorten pydantic's words: "Input should be greater than 0" → "greater than 0"."""
    return (
        message.removeprefix("Input should be ").removeprefix("Input should ").split(", unable")[0]
    )


def raise_all(problems: list[str], path: Path, typed: dict[str, Any]) -> None:
    """Raise one error with every problem, or return where there is none."""
    if not problems:
        return
    where = "the command line" if typed else path.name
    fix = f"correct it; `fastssl config {path.stem}` lists every key"
    if len(problems) == 1:
        raise ConfigError(problems[0], fix)
    lines = "".join(f"\n    {problem}" for problem in problems)
    raise ConfigError(f"{len(problems)} problems in {where}:{lines}", fix.replace("it;", "them;"))
