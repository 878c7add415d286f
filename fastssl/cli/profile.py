"""The verb `profile`: one command per subject, each with its own options."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import Field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from fastssl.cli.app import Json
from fastssl.profiling.subjects import SUBJECTS, Options
from fastssl.tracking.tables import show

app = typer.Typer(
    help="Measure the rate of a stage, or plan a run.",
    epilog="Example: fastssl profile step --repetitions 5",
)


def command(subject: str, options: type[Options]) -> Callable[..., None]:
    """Return the command of a subject: its parameters are the fields of its options."""

    def verb(
        save: Annotated[Path | None, typer.Option(help="Folder for the record.")] = None,
        as_json: Json = False,
        **given: Any,
    ) -> None:
        from fastssl.profiling.measure import save as save_record
        from fastssl.profiling.subjects import profile

        values = {name: value for name, value in given.items() if value is not None}
        record = profile(subject, **values)
        if save:
            save_record(record, save)
        show_record(record, as_json=as_json)

    hints = get_type_hints(options)  # without the annotations, which pydantic checks
    *shared, _ = signature(verb, eval_str=True).parameters.values()
    own = [parameter(one, hints[one.name]) for one in fields(options)]
    verb.__signature__ = Signature([*shared, *own])  # type: ignore[attr-defined]
    verb.__annotations__ = {}  # typer would read them without their typer.Option
    verb.__doc__ = options.__doc__
    return verb


def parameter(field: Field[Any], hint: Any) -> Parameter:
    """Return the typer parameter of one field; None as its value means the field's default."""
    default: Any = field.default
    metavar = None
    if get_origin(hint) is UnionType:
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        default, metavar, hint = ",".join(map(str, default)), "A,B,…", str
    # The default is shown, but not passed: an option that was not given is left to its class.
    shown: Any = typer.Option(
        help=field.metadata["help"],
        show_default=False if default is None else str(default),
        metavar=metavar,
    )
    if field.name == "overrides":
        hint, shown = list[str], typer.Argument(help=field.metadata["help"])
    annotation = Annotated[hint | None, shown]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def show_record(record: dict[str, Any], *, as_json: bool) -> None:
    """Print the record as one JSON object, or as a table, its ratios and its summary."""
    if as_json:
        print(json.dumps(record, indent=1, ensure_ascii=False))
        return
    columns = list(dict.fromkeys(name for row in record["results"] for name in row))
    show([{name: row.get(name) for name in columns} for row in record["results"]], False)
    for name, value in record.get("ratio", {}).items():
        print(f"{name}: {value} times")
    if record.get("says"):
        print(record["says"])


EXAMPLES = {
    "views": "--size 96",
    "train": "--config digits batch=16",
    "plan": "--config imagenet device=cuda --world 32 --decode 4000 --views 60000 --step 900",
}
for _subject, _options in SUBJECTS.items():
    _example = f"Example: fastssl profile {_subject} {EXAMPLES.get(_subject, '--repetitions 5')}"
    app.command(_subject, epilog=_example)(command(_subject, _options))
