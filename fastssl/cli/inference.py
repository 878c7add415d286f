"""The verbs that use a trained model, and `doctor`; cli.py hangs them on the command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path, typer.Argument(help="Run folder.")]
Checkpoint = Annotated[str, typer.Option(help="best or last.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; default: the run's.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def predict(
    run: Run,
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, globs, stores, or - for a list on stdin.")
    ],
    csv: Annotated[Path | None, typer.Option(help="Write CSV here; - for stdout.")] = None,
    jsonl: Annotated[Path | None, typer.Option(help="Write JSON lines here; - for stdout.")] = None,
    split: Annotated[str, typer.Option(help="Which split of a store.")] = "test",
    checkpoint: Checkpoint = "best",
    device: Device = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Pictures a batch.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 on a bad file.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is on pictures, with the averaged weights of a run."""
    from fastssl.inference.prediction_files import predict as work
    from fastssl.inference.predictor import Predictor
    from fastssl.tracking.console import messages
    from fastssl.tracking.progress_bar import Progress

    model = Predictor(run, checkpoint, device)
    with (
        messages(quiet=not sys.stderr.isatty()),
        Progress(0, "predicting", unit="images") as bar,
    ):
        tally = work(
            model,
            images,
            table=csv,
            lines=jsonl,
            split=split,
            batch=batch,
            stdin=sys.stdin,
            progress=lambda done: bar.advance(done - bar.done),
        )
    show_tally(tally, [str(path) for path in (csv, jsonl) if path], as_json)
    if strict and tally.bad:
        raise typer.Exit(3)


def show_tally(tally: Any, written: list[str], as_json: bool) -> None:
    """Print the first pictures where no file was asked for, the summary, and the bad files."""
    from contextlib import redirect_stdout

    from fastssl.inference.prediction_files import SHOWN
    from fastssl.tracking.tables import show

    # Where the predictions go to stdout themselves, the tables must not.
    with redirect_stdout(sys.stderr if "-" in written else sys.stdout):
        if as_json:
            import json

            content = {"pictures": tally.total, "labels": tally.rows(), "unreadable": tally.bad}
            print(json.dumps({**content, "seconds": round(tally.seconds, 3)}, indent=2))
            return
        if not written:
            show(tally.first, False)
            more = tally.total - len(tally.first)
            print(f"and {more:,} more; --csv FILE writes them all\n" if more else "")
        show(tally.rows(), False)
        rate = tally.total / max(tally.seconds, 1e-9)
        print(f"{tally.total:,} pictures in {tally.seconds:.1f} s, {rate:,.0f} a second")
        for path in written:
            print(f"written: {path}" if path != "-" else "written to stdout")
    for one in tally.bad[:SHOWN]:
        print(f"unreadable: {one['path']}: {one['why']}", file=sys.stderr)
    if len(tally.bad) > SHOWN:
        print(f"unreadable: {len(tally.bad) - SHOWN:,} more", file=sys.stderr)


def label(
    run: Run,
    store: Annotated[str, typer.Argument(help="Folder of a store, or a standard name.")],
    out: Annotated[Path, typer.Option(help="CSV to write.")] = Path("pseudo.csv"),
    sheet: Annotated[
        Path | None, typer.Option(help="Contact sheet, .html or .png; default: beside OUT.")
    ] = None,
    min_confidence: Annotated[float, typer.Option(help="Leave out what is below.")] = 0.0,
    trusted: Annotated[bool, typer.Option("--trusted", help="Trusted ones only.")] = False,
    given: Annotated[bool, typer.Option("--given", help="Also the labels you gave.")] = False,
    checkpoint: Checkpoint = "best",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write pseudo-labels of unlabelled pictures, to look through and convert again."""
    from fastssl.inference.label import label as work
    from fastssl.tracking.tables import show

    done = work(
        run,
        store,
        out,
        checkpoint=checkpoint,
        sheet=sheet or out.with_suffix(".html"),
        min_confidence=min_confidence,
        trusted_only=trusted,
        given=given,
        device=device,
    )
    if as_json:
        import json

        print(json.dumps(done, indent=2))
        return
    show(done["classes"], False)
    print(
        f"{done['written']:,} lines in {done['out']}, {done['trusted']:,} of {done['pictures']:,} "
        f"pictures trusted; look at {done['sheet']}, mend the lines,\n"
        f"then: fastssl convert FOLDER OUT --labels {done['out']}"
    )


def export(
    run: Run,
    file: Annotated[Path | None, typer.Argument(help="Ends in .pt2, .onnx, .safetensors.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Time every format here.")] = False,
    checkpoint: Checkpoint = "best",
    as_json: Json = False,
) -> None:
    """Write a model as one file to ship, and check it on the spot."""
    from fastssl.errors import ConfigError
    from fastssl.inference import export as exporting
    from fastssl.tracking.tables import show

    if file is None and not compare:
        raise ConfigError("no file is named", "fastssl export RUN model.onnx, or --compare")
    rows = [exporting.export(run, file, checkpoint)] if file else []
    times = exporting.compare(run, checkpoint) if compare else []
    if as_json:
        show(rows + times, True)  # one list, which a program can read
        return
    for table in filter(None, (rows, times)):
        show(table, False)


def migrate(file: Path) -> None:
    """Print a YAML of TorchSSL or USB as ours; what was not carried over goes to stderr."""
    from fastssl.config.migration import migrate as work

    done = work(file)
    print(done.text(), end="")
    for key, why in done.lost.items():
        print(f"not carried over: {key}: {why}", file=sys.stderr)


def doctor(
    test: Annotated[bool, typer.Option("--test", help="Train and predict for 10 s.")] = False,
    as_json: Json = False,
) -> None:
    """Show what this machine can run, and the pip line for what is missing."""
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


VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "predict": (predict, "Example: fastssl predict runs/a photos '*.png' --csv guesses.csv"),
    "label": (label, "Example: fastssl label runs/a data/pets --out pseudo.csv --trusted --given"),
    "export": (export, "Example: fastssl export runs/a model.onnx"),
    "doctor": (doctor, "Example: fastssl doctor --test"),
}
