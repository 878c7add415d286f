"""The verbs that use a trained model, and `doctor`."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from fastssl.cli.app import Checkpoint, Device, Json, Run, TrustCode, app
from fastssl.errors import ConfigError
from pipelines.text import for_terminal


@app.command(name="eval", epilog="Example: fastssl eval runs/a")
def evaluate(
    run: Run,
    checkpoint: Checkpoint = "best",
    store: Annotated[str | None, typer.Option(help="Another store.")] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Evaluate a trained model on its test set."""
    from fastssl.inference.evaluate import evaluate as work
    from fastssl.tracking.tables import show

    metrics = work(run, checkpoint, store, trust_code=trust_code)
    if as_json:
        print(json.dumps(metrics, indent=2))
        return
    short = {k: v for k, v in metrics.items() if not isinstance(v, list)}
    show([{"metric": key, "value": value} for key, value in short.items()], False)
    if metrics["confused"]:
        print("\nconfused most often:")
        show(metrics["confused"], False)
    show_notes(metrics["notes"])


def show_notes(notes: list[str]) -> None:
    """Print on stderr what a reader of the numbers must know."""
    for note in notes:
        print(for_terminal(f"note: {note}"), file=sys.stderr)


@app.command(epilog="Example: fastssl predict runs/a photos '*.png' --csv labels.csv")
def predict(
    run: Run,
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, globs, stores, or - for a list on stdin.")
    ],
    csv: Annotated[Path | None, typer.Option(help="Write CSV here; - for stdout.")] = None,
    jsonl: Annotated[Path | None, typer.Option(help="Write JSON lines here; - for stdout.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of every class.")
    ] = False,
    split: Annotated[str, typer.Option(help="Which split of a store.")] = "test",
    checkpoint: Checkpoint = "best",
    device: Device = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images in a batch.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 on a bad file.")] = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Predict the classes of images with the EMA model of a run."""
    if probabilities and not (csv or jsonl):
        raise ConfigError("--probabilities is given without a file", "add --csv FILE")
    from fastssl.inference.prediction_files import predict as work
    from fastssl.inference.predictor import Predictor
    from fastssl.tracking.console import messages
    from fastssl.tracking.progress_bar import Progress

    model = Predictor(run, checkpoint, device, trust_code=trust_code)
    with (
        warnings.catch_warnings(),
        messages(quiet=not sys.stderr.isatty()),
        Progress(0, "predicting", unit="images") as bar,
    ):
        # Pillow warns about unusual files; those that matter are in our list of unreadable files.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        tally = work(
            model,
            images,
            table=csv,
            lines=jsonl,
            each=probabilities,
            split=split,
            batch=batch,
            stdin=sys.stdin,
            progress=lambda done: bar.advance(done - bar.done),
        )
    show_tally(tally, [str(path) for path in (csv, jsonl) if path], as_json)
    if strict and tally.bad:
        raise typer.Exit(3)


def show_tally(tally: Any, written: list[str], as_json: bool) -> None:
    """Print the summary, the unreadable files and, if no file is written, the first images."""
    from fastssl.inference.prediction_files import SHOWN
    from fastssl.tracking.tables import show

    # If stdout receives the predictions, the tables go to stderr.
    with redirect_stdout(sys.stderr if "-" in written else sys.stdout):
        if as_json:
            content = {"images": tally.total, "labels": tally.rows(), "unreadable": tally.bad}
            content |= {"notes": tally.notes, "seconds": round(tally.seconds, 3)}
            print(json.dumps(content, indent=2))
            return
        if not written:
            show(tally.first, False)
            more = tally.total - len(tally.first)
            print(f"and {more:,} more; --csv FILE writes them all\n" if more else "")
        show(tally.rows(), False)
        rate = tally.total / max(tally.seconds, 1e-9)
        print(f"{tally.total:,} images in {tally.seconds:.1f} s, {rate:,.0f} images/s")
        for path in written:
            print(f"written: {path}" if path != "-" else "written to stdout")
    show_notes(tally.notes)
    for one in tally.bad[:SHOWN]:
        print(for_terminal(f"unreadable: {one['path']}: {one['why']}"), file=sys.stderr)
    if len(tally.bad) > SHOWN:
        print(f"unreadable: {len(tally.bad) - SHOWN:,} more", file=sys.stderr)


@app.command(epilog="Example: fastssl label runs/a data/pets --out pseudo.csv --trusted --given")
def label(
    run: Run,
    store: Annotated[str, typer.Argument(help="Folder of a store, or a standard name.")],
    out: Annotated[Path, typer.Option(help="CSV to write.")] = Path("pseudo.csv"),
    sheet: Annotated[
        Path | None, typer.Option(help="Contact sheet, .html or .png; default: beside OUT.")
    ] = None,
    floor: Annotated[
        float, typer.Option(help="Lowest confidence to trust; 0: learned thresholds alone.")
    ] = 0.95,
    min_confidence: Annotated[float, typer.Option(help="Leave out lower confidences.")] = 0.0,
    trusted: Annotated[bool, typer.Option("--trusted", help="Only trusted images.")] = False,
    given: Annotated[bool, typer.Option("--given", help="Include the labels you gave.")] = False,
    cross_fit: Annotated[
        int | None, typer.Option(help="Train this many models to estimate the precision.")
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Write pseudo-labels of unlabeled images, to review and convert again."""
    from fastssl.inference.label import label as work
    from fastssl.probing.probe import refit
    from fastssl.tracking.tables import show

    done = work(
        run,
        store,
        out,
        refit=refit,
        checkpoint=checkpoint,
        sheet=sheet or out.with_suffix(".html"),
        floor=floor,
        min_confidence=min_confidence,
        trusted_only=trusted,
        given=given,
        cross_fit=cross_fit,
        device=device,
        trust_code=trust_code,
    )
    if as_json:
        print(json.dumps(done, indent=2))
        return
    show(done["classes"], False)
    print(
        f"{done['written']:,} lines in {done['out']}, {done['trusted']:,} of {done['images']:,} "
        f"images trusted\nexpected precision of the trusted labels: {done['expected']}"
    )
    for warning in done["warnings"]:
        print(for_terminal(f"warning: {warning}"), file=sys.stderr)
    print(f"look at {done['sheet']} and correct the lines of {done['out']}")
    if not trusted or not given:
        print("--trusted leaves out the lines that are not trusted, --given adds your own labels")
    elif done["next"]:
        print(for_terminal(f"next: {done['next']}"))
        if " --train-list " in done["next"]:
            print("(it leaves out images without a label, because they lie in other folders)")


@app.command(epilog="Example: fastssl export runs/a model.onnx")
def export(
    run: Run,
    file: Annotated[Path, typer.Argument(help="Ends in .pt2, .onnx, .safetensors.")],
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Write the model as one file to ship, and check the file."""
    from fastssl.inference.export import export as work
    from fastssl.tracking.tables import show

    show([work(run, file, checkpoint, trust_code=trust_code)], as_json)


def migrate(file: Path) -> None:
    """Print a TorchSSL or USB YAML as a configuration of fastssl; lost keys go to stderr."""
    from fastssl.config.migration import migrate as work

    done = work(file)
    print(done.text(), end="")
    for key, why in done.lost.items():
        print(f"not carried over: {key}: {why}", file=sys.stderr)


@app.command(epilog="Example: fastssl doctor --test")
def doctor(
    test: Annotated[bool, typer.Option("--test", help="Train and predict, 10 s.")] = False,
    as_json: Json = False,
) -> None:
    """Show what this machine can run, and how to install what is missing."""
    from fastssl.cli.doctor import rows, self_test
    from fastssl.tracking.tables import show

    found = rows()
    if not test:
        show(found, as_json)
        return
    results = self_test()
    show([*found, *results], as_json)
    if any(str(one["state"]).startswith("FAILED") for one in results):
        raise typer.Exit(1)
