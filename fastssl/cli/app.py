"""The typer application that all verbs register with, and the options that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastssl.version import __version__

app = typer.Typer(
    name="fastssl",
    help="Learn image classifiers from a handful of labels and a mass of unlabeled images.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[str, typer.Argument(help="Name of a shipped configuration, or a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key=value.")]
Run = Annotated[Path, typer.Argument(help="Run folder.")]
Checkpoint = Annotated[str, typer.Option(help="best or last.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; default: the run's.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the Python files that a run folder names.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        print(f"fastssl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn image classifiers from a handful of labels and a mass of unlabeled images."""
