"""The verbs for many runs: `sweep` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastssl.cli.app import TrustCode, app


@app.command(epilog="Example: fastssl sweep small --jobs 2")
def sweep(
    file: Annotated[str, typer.Argument(help="YAML file of a grid, or a shipped one: table1 …")],
    jobs: Annotated[int, typer.Option(help="Runs at a time; each gets its own GPU.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and the time they will take.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Only cells whose name contains or matches this.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/NAME.")] = None,
    rerun_changed: Annotated[
        bool,
        typer.Option("--rerun-changed", help="Train cells with changed settings in new folders."),
    ] = False,
    trust_code: TrustCode = False,
) -> None:
    """Train a grid of runs; the same line continues an interrupted one."""
    from fastssl.sweep.runner import run

    raise typer.Exit(
        run(
            file,
            jobs=jobs,
            dry_run=dry_run,
            only=only,
            out=out,
            trust_code=trust_code,
            rerun_changed=rerun_changed,
        )
    )


@app.command(epilog="Example: fastssl report runs/small --out report.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    format: Annotated[
        str | None, typer.Option(help="html, md, csv or json; default: by the file's name.")
    ] = None,
) -> None:
    """Write tables and plots of runs, beside the published results."""
    from fastssl.report import write

    print(write(runs, out, format))
