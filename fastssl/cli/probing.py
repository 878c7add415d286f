"""The verbs on frozen features: `probe` and `choose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fastssl.cli.app import Json, Overrides, TrustCode, app
from pipelines.text import for_terminal

StoreName = Annotated[str, typer.Argument(help="Folder of a store, or a standard name.")]


@app.command(epilog="Example: fastssl probe data/pets model=timm:resnet18")
def probe(
    store: StoreName,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Fit classifiers to frozen features in minutes; the best becomes a run."""
    from fastssl.probing.probe import probe as work
    from fastssl.tracking.tables import show

    done = work(store, out, overrides, trust_code=trust_code)
    if as_json:
        print(json.dumps(done, indent=2))
        return
    show(done["heads"], False)
    print(done["note"])


@app.command(epilog="Example: fastssl choose data/pets -n 25")
def choose(
    store: StoreName,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Images to choose.")] = 25,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Choose -n times the number of classes.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("to_label.csv"),
    form: Annotated[str, typer.Option("--format", help="csv or labelstudio.")] = "csv",
    run: Annotated[
        Path | None, typer.Option(help="Choose what the model of this run is least certain of.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Choose which images to label first."""
    from fastssl.probing.choose import choose as work

    done = work(
        store,
        count,
        per_class=per_class,
        out=out,
        form=form,
        run=run,
        overrides=overrides,
        trust_code=trust_code,
    )
    if as_json:
        print(json.dumps(done, indent=2))
        return
    print(f"{done['images']:,} images to label in {done['out']}; look at {done['sheet']}")
    if done["next"]:
        print(for_terminal(f"fill in the labels, then: {done['next']}"))
