"""The verb `profile`: one command per subject, each with its own options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from fastssl.profiling.subjects import SUBJECTS, Options

app = typer.Typer(
    help="Measure the rate of a stage, or plan a run.",
    epilog="Example: fastssl profile step --repetitions 5",
)

OUTPUT = {
    "save": Annotated[Path | None, typer.Option(help="Folder for the record.")],
    "as_json": Annotated[bool, typer.Option("--json", help="Print the record as JSON.")],
}


def command(subject: str, options: type[Options]) -> Callable[..., None]:
    """Return the command of a subject: its parameters are the fields of its options."""
    hints = get_type_hints(options)  # without the annotations, which pydantic checks

    def verb(**given: Any) -> None:
        from fastssl.profiling.measure import save
        from fastssl.profiling.subjects import profile

        folder, as_json = given.pop("save"), given.pop("as_json")
        values = {name: value for name, value in given.items() if value is not None}
        record = profile(subject, **values)
        if folder:
            save(record, folder)
        show_record(record, as_json=as_json)

    parameters = [parameter(one, hints[one.name]) for one in fields(options)]
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=OUTPUT[name])
        for name, default in (("save", None), ("as_json", False))
    ]
    verb.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {}
    verb.__doc__ = options.__doc__
    return verb


def parameter(field: Field[Any], hint: Any) -> Parameter:
    """Return the typer parameter of one field; None as its value means the field's default."""
    help = field.metadata["help"]
    kind = Parameter.KEYWORD_ONLY
    if field.name == "overrides":
        overrides = Annotated[list[str] | None, typer.Argument(help=help)]
        return Parameter(field.name, kind, default=None, annotation=overrides)
    if get_origin(hint) is UnionType:
        hint = get_args(hint)[0]
    default = "" if field.default in (MISSING, None) else str(field.default)
    metavar = None
    if get_origin(hint) is tuple:
        default, metavar, hint = default.strip("()").replace("'", "").replace(" ", ""), "A,B,…", str
    # The default is shown, but not passed: an option that was not given is left to its class.
    shown = typer.Option(help=help, show_default=default or False, metavar=metavar)
    return Parameter(field.name, kind, default=None, annotation=Annotated[hint | None, shown])


def show_record(record: dict[str, Any], *, as_json: bool) -> None:
    """Print the record as one JSON object, or as a table, its ratios and its summary."""
    if as_json:
        import json

        print(json.dumps(record, indent=1, ensure_ascii=False))
        return
    from fastssl.tracking.tables import show

    columns = list(dict.fromkeys(name for row in record["results"] for name in row))
    show([{name: row.get(name) for name in columns} for row in record["results"]], False)
    for name, value in record.get("ratio", {}).items():
        print(f"{name}: {value} times")
    if record.get("says"):
        print(record["says"])


EXAMPLES = {
    "views": "--size 96",
    "photos": "--folder photos",
    "predict": "--folder photos",
    "train": "--config digits batch=16",
    "plan": "--config imagenet device=cuda --world 32 --decode 4000 --views 60000 --step 900",
}
for _subject, _options in SUBJECTS.items():
    _example = f"Example: fastssl profile {_subject} {EXAMPLES.get(_subject, '--repetitions 5')}"
    app.command(_subject, epilog=_example)(command(_subject, _options))
