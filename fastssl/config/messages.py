"""Mistakes in a configuration, told in words, all at once."""

from __future__ import annotations

import reprlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fastssl.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError

SHOWN = 50  # problems told by name; nobody mends more at once

_brief = reprlib.Repr()
_brief.maxlevel = 2  # a few lines of YAML can stand for more than fits into the memory
_brief.maxstring = _brief.maxother = _brief.maxlong = 80


def brief(value: Any) -> str:
    """Return a value as Python writes it, cut at 80 characters, however large it is."""
    try:
        return _brief.repr(value)[:80]
    except ValueError:  # an integer of thousands of digits
        return f"a huge {type(value).__name__}"


def nearest(name: object, names: list[str]) -> str:
    """Return " (did you mean …?)" or nothing."""
    near = get_close_matches(str(name)[:80], names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def describe(error: ValidationError, names: list[str], prefix: str) -> list[str]:
    """Put each mistake that pydantic found into one sentence, one a key."""
    told: dict[str, str] = {}
    for problem in error.errors():
        place = problem["loc"]
        key = f"{prefix}{place[0]}" if place else ""
        if problem["type"] == "extra_forbidden":
            hint = nearest(place[0], names) if len(told) < SHOWN else ""
            told[key] = f"unknown key {key}{f' (did you mean {prefix}{hint[15:]}' if hint else ''}"
        elif problem["type"] == "value_error":
            told[key] = str(problem["msg"]).removeprefix("Value error, ")
        else:
            value = brief(problem["input"])
            told.setdefault(key, f"{key} is {value}; wants: {lower(problem['msg'])}")
    return list(told.values())


def lower(message: str) -> str:
    """Shorten pydantic's words: "Input should be greater than 0" → "greater than 0"."""
    return (
        message.removeprefix("Input should be ").removeprefix("Input should ").split(", unable")[0]
    )


def raise_all(problems: list[str], where: str, algorithm: str = "") -> None:
    """Raise one error with every problem, or return where there is none."""
    if not problems:
        return
    # Not the configuration itself, which may be the one that is wrong: the keys are the same.
    chosen = f" algorithm={algorithm}" if algorithm else ""
    fix = f"correct it; `fastssl config digits{chosen}` lists every key"
    if len(problems) == 1:
        raise ConfigError(problems[0], fix)
    lines = "".join(f"\n    {problem}" for problem in problems[:SHOWN])
    lines += f"\n    and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    raise ConfigError(f"{len(problems)} problems in {where}:{lines}", fix.replace("it;", "them;"))
