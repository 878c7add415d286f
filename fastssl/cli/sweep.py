"""The verbs for many runs, `sweep` and `report`; cli.py hangs them on the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def sweep(
    file: Annotated[str, typer.Argument(help="YAML file of a grid, or a shipped one: table1 …")],
    jobs: Annotated[int, typer.Option(help="Runs at a time; each gets a GPU of its own.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and how long they will take.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Only cells whose name holds or matches this.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/NAME.")] = None,
) -> None:
    """Train a grid of runs; interrupted or not, the same line goes on with it."""
    from fastssl.sweep.runner import run

    raise typer.Exit(run(file, jobs=jobs, dry_run=dry_run, only=only, out=out))


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    format: Annotated[
        str | None, typer.Option(help="html, md, csv or json; default: by the file's name.")
    ] = None,
) -> None:
    """Write tables and plots of runs, beside the published figures."""
    from fastssl.report import write

    print(write(runs, out, format))


VERBS: dict[str, tuple[Callable[..., Any], str]] = {
    "sweep": (sweep, "Example: fastssl sweep small --jobs 2"),
    "report": (report, "Example: fastssl report runs/small --out report.html"),
}
