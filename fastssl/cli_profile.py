"""The verb `profile`: rates by stage, with peers measured in the same run."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

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
LISTS = {"against", "threads", "images", "readers"}  # options that may hold several values
WITH_CONFIG = {"train", "plan"}  # subjects whose words are settings of a run


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
    """Import the subject's module and run it with the options given, and no others."""
    if subject not in SUBJECTS:
        from fastssl.config_problems import nearest

        raise ConfigError(
            f"there is nothing to profile named {subject!r}{nearest(subject, list(SUBJECTS))}",
            f"type one of: {', '.join(SUBJECTS)}",
        )
    from importlib import import_module

    from fastssl.config_files import parse_words

    module = import_module(f"fastssl.profiling.{subject}")
    known = {field.name: field for field in fields(module.Options)}
    if subject in WITH_CONFIG:
        own = [word for word in words if word.partition("=")[0] in known]
        asked = {**asked, "overrides": [word for word in words if word not in own]}
        words = own
        if config:
            asked["config"] = config
    elif config:
        raise ConfigError(f"{subject} takes no configuration", "leave --config out")
    typed = {key.replace("-", "_"): value for key, value in parse_words(words).items()}
    options = {key: _several(key, value, known) for key, value in {**asked, **typed}.items()}
    for name in options.keys() - known.keys():
        raise ConfigError(
            f"profile {subject} has no option {name!r}", f"take: {', '.join(sorted(known))}"
        )
    try:
        inspect.signature(module.run).bind(**options)
    except TypeError as error:
        raise ConfigError(f"profile {subject}: {error}", "add what is missing") from error
    found: dict[str, Any] = module.run(**options)
    return found


def _several(name: str, value: Any, known: dict[str, Any]) -> Any:
    """Cut a list at its commas where the subject wants one."""
    if name not in LISTS or name not in known or "tuple" not in str(known[name].type):
        return int(value) if name == "threads" and isinstance(value, str) else value
    items = value.split(",") if isinstance(value, str) else [value]
    return tuple(int(item) if str(item).isdigit() else item for item in items)


def show_record(record: dict[str, Any], as_json: bool) -> None:
    """Print the record as one JSON object, or its table, ratios and the bottleneck."""
    if as_json:
        import json

        print(json.dumps(record, indent=1, ensure_ascii=False))
        return
    from fastssl.tables import show

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
