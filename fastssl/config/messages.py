"""Error messages for mistakes in a configuration: all of them at once, each in one sentence."""

from __future__ import annotations

import reprlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from fastssl.errors import ConfigError, UserError

if TYPE_CHECKING:
    from pydantic import ValidationError

SHOWN = 50  # problems listed by name; the rest are counted

_brief = reprlib.Repr()
_brief.maxlevel = 2  # YAML aliases can expand a few lines into more values than fit into memory
_brief.maxstring = _brief.maxother = _brief.maxlong = 80


class Problem(NamedTuple):
    """One mistake: what is wrong and, where that is not obvious, what to type instead."""

    what: str
    fix: str = ""


def brief(value: Any) -> str:
    """Return the repr of a value, cut at 80 characters, without building the whole of it."""
    try:
        return _brief.repr(value)[:80]
    except ValueError:  # Python refuses to print an integer of thousands of digits
        return f"a huge {type(value).__name__}"


def nearest(name: object, names: list[str]) -> str:
    """Return " (did you mean …?)", or "" where no name is close."""
    near = get_close_matches(str(name)[:80], names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def describe(error: ValidationError, names: list[str], prefix: str = "") -> list[Problem]:
    """Return the problems that pydantic found, at most one for each key.

    A validator of ours raises ValueError with one argument: a sentence, a UserError, or a list of
    problems of a nested model.
    """
    found: dict[str, list[Problem]] = {}
    for problem in error.errors(include_url=False):
        where = problem["loc"]
        key = f"{prefix}{where[0]}" if where else ""
        if problem["type"] == "extra_forbidden":
            hint = nearest(where[0], names) if len(found) < SHOWN else ""  # the search is slow
            hint = hint.replace("mean ", f"mean {prefix}")
            found[key] = [Problem(f"unknown key {key}{hint}")]
        elif problem["type"] == "value_error":
            cause = problem["ctx"]["error"].args[0]
            if isinstance(cause, UserError):
                cause = [Problem(cause.what, cause.fix)]
            found[key] = cause if isinstance(cause, list) else [Problem(cause)]
        else:
            expected = problem["msg"].removeprefix("Input should be ").removeprefix("Input should ")
            expected = expected.split(", unable")[0]
            text = f"{key} is {brief(problem['input'])}; expected: {expected}"
            # A key that takes one of several types has a problem for each of them.
            before = found.setdefault(key, [Problem(text)])[0].what
            if before.startswith(text.removesuffix(expected)) and expected not in before:
                found[key] = [Problem(f"{before} or {expected}")]
    return [one for problems in found.values() for one in problems]


def raise_all(problems: list[Problem], where: str, algorithm: object = "") -> None:
    """Raise one ConfigError that lists every problem; return if there is none."""
    if not problems:
        return
    # Not the user's configuration, which may be the one that is wrong: the keys are the same.
    chosen = f" algorithm={algorithm}" if isinstance(algorithm, str) and algorithm else ""
    fix = f"`fastssl config digits{chosen}` lists every key"
    if len(problems) == 1:
        raise ConfigError(problems[0].what, problems[0].fix or f"correct it; {fix}")
    lines = [": ".join(filter(None, problem)) for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"and {len(problems) - SHOWN:,} more")
    text = "".join(f"\n    {line}" for line in lines)
    raise ConfigError(f"{len(problems)} problems in {where}:{text}", f"correct them; {fix}")
