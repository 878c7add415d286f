"""The verbs on frozen features, `probe` and `choose`, and `auto`, which begins with them."""

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
    out: Annotated[
        Path | None, typer.Option(help="File to write: to_label.csv or to_label.json.")
    ] = None,
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
    if "start" in done:
        print(for_terminal(f"start Label Studio by: {done['start']}"))
    for step in done.get("steps", ["fill in the labels"]):
        print(for_terminal(step))
    if done["next"]:
        print(for_terminal(f"then: {done['next']}"))


@app.command(epilog="Example: fastssl auto photos --unlabeled more --minutes 30")
def auto(
    folder: Annotated[Path, typer.Argument(help="Folder of images, with or without classes.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all results.")] = None,
    unlabeled: Annotated[Path | None, typer.Option(help="Images without a label.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="CSV of path,label, or Label Studio's JSON.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Class folders to test on.")] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Time of all steps together.")] = 30,
    size: Annotated[int | None, typer.Option(help="Side of the stored images.")] = None,
    choose: Annotated[
        int | None, typer.Option(min=1, help="Images to choose if none has a label.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Go the whole way from images to a model and a report; type it again to continue."""
    from fastssl.automation.steps import auto as work
    from fastssl.tracking.tables import show

    done = work(
        folder,
        overrides,
        out=out,
        unlabeled=unlabeled,
        labels=labels,
        test=test,
        minutes=minutes,
        size=size,
        choose=choose,
        trust_code=trust_code,
    )
    if as_json:
        print(json.dumps(done, indent=2))
        return
    if "to_label" in done:
        print(for_terminal(f"look at {done['sheet']}, write the class of each image into"))
        print(for_terminal(f"{done['to_label']}, second column, then type: {done['next']}"))
        return
    show(done["runs"], False)
    for name in ("best", "report", "next"):
        print(for_terminal(f"{name}: {done[name]}"))
