"""The verb `profile`: rates by stage, with peers measured in the same run."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from fastssl.errors import ConfigError

SUBJECTS = {
    "views": "making views, against Pillow, torchvision, DALI and FFCV",
    "photos": "from JPEG on disk to views, against a plain DataLoader (--folder)",
    "convert": "converting data sets, against FFCV's writer and Pillow",
    "cpl": "the curriculum, against recounting all marks",
    "step": "one training step, against the reference's",
    "train": "training with every reader, against a batch that costs nothing",
    "predict": "predicting pictures (--folder)",
    "checkpoint": "saving: what it takes from training",
    "scaling": "one process against several",
    "plan": "what bounds a run, on paper and measured",
}
WITH_CONFIG = {"train", "plan"}  # subjects whose words are settings of a run
ZERO = {"step threads", "convert arrays", "convert photos", "plan decode", "plan link"}  # may be 0
WANTS = {int: "a whole number", float: "a number", bool: "true or false"}


def profile(
    subject: Annotated[str, typer.Argument(help=", ".join(SUBJECTS) + ".")],
    words: Annotated[
        list[str] | None, typer.Argument(help="Options of the subject as key=value.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="Configuration, for train and plan.")] = None,
    against: Annotated[str | None, typer.Option(help="Peers, with commas.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels of a side.")] = None,
    threads: Annotated[str | None, typer.Option(help="Threads, with commas.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Pictures.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a repetition.")] = None,
    repetitions: Annotated[int | None, typer.Option(help="Counted rounds.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="The compiled step too.")] = False,
    save: Annotated[Path | None, typer.Option(help="Folder for the record.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the rate of a stage, interleaved with its peers."""
    given: dict[str, Any] = {
        "against": against,
        "size": size,
        "threads": threads,
        "folder": folder,
        "steps": steps,
        "repetitions": repetitions,
        "compiled": compiled or None,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    record = measure(subject, words or [], config, asked)
    if save:
        from fastssl.profiling.measure import save as write

        write(record, save)
    show_record(record, as_json)


def measure(
    subject: str, words: list[str], config: str | None, asked: dict[str, Any]
) -> dict[str, Any]:
    """Run the subject's module with the options given, and no others."""
    module = subject_module(subject)
    known = {field.name: field for field in fields(module.Options) if field.name != "overrides"}
    more: dict[str, Any] = {}
    if subject in WITH_CONFIG:
        own = [word for word in words if word.partition("=")[0] in known]
        more["overrides"] = [word for word in words if word not in own]
        words = own
        asked = {**asked, "config": config} if config else asked
    elif config:
        raise ConfigError(f"{subject} takes no configuration", "leave --config out")
    given = {**{name: str(value) for name, value in asked.items()}, **split_words(words)}
    for name in given.keys() - known.keys():
        raise ConfigError(
            f"profile {subject} has no option {name!r}", f"take: {', '.join(sorted(known))}"
        )
    for field in known.values():
        if field.name not in given and field.default is MISSING:
            name = field.name
            raise ConfigError(f"profile {subject} needs {name}", f"add {name}={name.upper()}")
    hints = get_type_hints(module.Options)
    options = {
        name: converted(subject, known[name], hints[name], text) for name, text in given.items()
    }
    found: dict[str, Any] = module.run(**options, **more)
    return found


def subject_module(subject: str) -> Any:
    """Import the module that measures a subject."""
    if subject not in SUBJECTS:
        from fastssl.config.messages import nearest

        raise ConfigError(
            f"there is nothing to profile named {subject!r}{nearest(subject, list(SUBJECTS))}",
            f"type one of: {', '.join(SUBJECTS)}",
        )
    from importlib import import_module

    return import_module(f"fastssl.profiling.{subject}")


def split_words(words: list[str]) -> dict[str, str]:
    """Cut `key=value` words in two; a value stays the text that was typed."""
    found = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r} is not key=value", "type it as repetitions=5")
        found[key.replace("-", "_")] = text
    return found


def converted(subject: str, field: Field[Any], kind: Any, text: str) -> Any:
    """Turn what was typed into the type of its option; say what to type where that can't be."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    several = get_origin(kind) is tuple
    value: Any = text.strip()
    if value.lower() in ("", "none", "null"):
        value = None
    elif several:
        value = [item.strip() for item in value.strip("[]").split(",")]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
        found = adapter.validate_python(value)
    except ValidationError:
        found = None
        wrong = True
    else:
        numbers = found if several else (found,)
        counted = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]
        wrong = any(n < 0 or (n == 0 and f"{subject} {field.name}" not in ZERO) for n in counted)
    if wrong:
        raise ConfigError(
            f"profile {subject}: {field.name} can't be {text!r}; it wants {wanted(kind)}",
            f"type {field.name}={example(field)}",
        )
    return found


def wanted(kind: Any) -> str:
    """Say in words what an option takes."""
    inner = next((one for one in get_args(kind) if one in WANTS), kind)
    one = WANTS.get(inner, "a text")
    return f"{one}, or several with commas" if get_origin(kind) is tuple else one


def example(field: Field[Any]) -> str:
    """Return a value that an option would take: its default, where that says something."""
    default = field.default
    if isinstance(default, tuple):
        return ",".join(str(item) for item in default)
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default and default is not MISSING else "1000"


def show_record(record: dict[str, Any], as_json: bool) -> None:
    """Print the record as one JSON object, or its table, ratios and the bottleneck."""
    if as_json:
        import json

        print(json.dumps(record, indent=1, ensure_ascii=False))
        return
    from fastssl.tracking.tables import show

    columns = list(dict.fromkeys(name for row in record["results"] for name in row))
    show([{name: row.get(name) for name in columns} for row in record["results"]], False)
    for name, value in record.get("ratio", {}).items():
        print(f"{name}: {value} times")
    exchanged = record.get("collectives")
    if exchanged:
        print(
            f"collectives a step over {exchanged['ranks']} ranks: {exchanged['calls']}, "
            f"{exchanged['bytes']:,} bytes"
        )
    if record.get("says"):
        print(record["says"])


VERBS = {"profile": (profile, "Example: fastssl profile step --repetitions 5")}
