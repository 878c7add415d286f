"""Every verb of the command; torch is imported only where a verb needs it.

A mistake of the user ends in two lines on stderr and an exit code, never in a traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fastssl.cli import inference, profile, sweep
from fastssl.errors import ConfigError, UserError
from fastssl.version import __version__

app = typer.Typer(
    name="fastssl",
    help="Learn image classifiers from a handful of labels and a mass of unlabelled images.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

UsageError: Any = typer.BadParameter.__mro__[1]  # typer gives its base no public name

Config = Annotated[str, typer.Argument(help="Name of a shipped configuration, or a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key=value.")]
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
    """Learn image classifiers from a handful of labels and a mass of unlabelled images."""


@app.command(epilog="Example: fastssl train cifar10 labels=250 --out runs/a")
def train(
    config: Config,
    words: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Start, or go on.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Try it, write nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the time of a step as JSON.")
    ] = False,
) -> None:
    """Train a model."""
    if as_json and not dry_run:
        raise ConfigError("--json is given without --dry-run", "add --dry-run or drop --json")
    from fastssl.config.resolve import load

    resolved = load(config, words)
    from fastssl.engine.launch import run_training

    raise typer.Exit(run_training(resolved, out, resume, dry_run, as_json=as_json))


@app.command(name="eval", epilog="Example: fastssl eval runs/a")
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    checkpoint: Annotated[str, typer.Option(help="best or last.")] = "best",
    store: Annotated[str | None, typer.Option(help="Another store.")] = None,
    as_json: Json = False,
) -> None:
    """Judge a trained model on its test set."""
    from fastssl.inference.trained_model import evaluate as judge
    from fastssl.tracking.tables import show

    figures = judge(run, checkpoint, store)
    if as_json:
        import json

        print(json.dumps(figures, indent=2))
        return
    short = {k: v for k, v in figures.items() if not isinstance(v, list)}
    show([{"figure": key, "value": value} for key, value in short.items()], False)


@app.command(epilog="Example: fastssl config cifar10 labels=250")
def config(
    config: Annotated[str | None, typer.Argument(help="A configuration's name, or YAML.")] = None,
    words: Overrides = None,
    from_torchssl: Annotated[
        Path | None, typer.Option(help="Print a TorchSSL or USB YAML as ours.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every setting, its value, where it comes from and what it does."""
    if from_torchssl:
        inference.migrate(from_torchssl)
        return
    if config is None:
        raise ConfigError("no configuration is named", "fastssl config digits")
    from fastssl.cli.listing import configuration
    from fastssl.config.resolve import load
    from fastssl.tracking.tables import show

    show(configuration(load(config, words)), as_json)


@app.command(name="list", epilog="Example: fastssl list algorithms")
def list_(
    kind: Annotated[str, typer.Argument(help="algorithms, datasets, models, readers, configs.")],
    as_json: Json = False,
) -> None:
    """List what there is to choose from."""
    from fastssl.cli.listing import rows
    from fastssl.tracking.tables import show

    show(rows(kind), as_json)


@app.command(epilog="Example: fastssl convert photos data/pets --unlabeled more --size 32")
def convert(
    source: Annotated[str, typer.Argument(help="A standard name, a folder of images, or .npz.")],
    out: Annotated[Path | None, typer.Argument(help="Folder of the new store.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where a standard set's files lie.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a standard set.")] = False,
    formats: Annotated[str, typer.Option("--format", help="dali, ffcv or ffcv,dali.")] = "dali",
    size: Annotated[int | None, typer.Option(help="Side of the stored images.")] = None,
    resize: Annotated[str | None, typer.Option(help="squash, crop or pad.")] = None,
    quality: Annotated[int | None, typer.Option(help="JPEG quality; 0 stores RAW.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.")] = None,
    unlabeled: Annotated[Path | None, typer.Option(help="Images without a label.")] = None,
    labels: Annotated[Path | None, typer.Option(help="CSV of path,label.")] = None,
    test: Annotated[Path | None, typer.Option(help="Class folders to test on.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Share to test on.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses the test images.")] = 0,
    on_error: Annotated[str, typer.Option(help="stop or skip at a bad image.")] = "stop",
    follow: Annotated[bool, typer.Option("--follow", help="Follow links out.")] = False,
    no_extra: Annotated[bool, typer.Option("--no-extra", help="SVHN without extra.")] = False,
) -> None:
    """Convert a data set once, to be read at full rate."""
    from fastssl.conversion import convert as run
    from pipelines.convert import Options

    options = Options(
        root=root,
        download=download,
        formats=formats,
        size=size,
        resize=resize,
        quality=quality,
        workers=workers,
        unlabeled=unlabeled,
        labels=labels,
        test=test,
        test_fraction=test_fraction,
        seed=seed,
        on_error=on_error,
        follow=follow,
        no_extra=no_extra,
    )
    store = run(source, out, options)
    print(f"{store.path}: next: fastssl verify {store.path}")


@app.command(epilog="Example: fastssl verify data/pets")
def verify(
    store: Annotated[Path, typer.Argument(help="Folder of a store.")],
    sample: Annotated[int | None, typer.Option(help="Decode only so many images.")] = None,
) -> None:
    """Check every byte of a store."""
    from fastssl.conversion import verify as run

    report = run(store, sample=sample)
    for problem in report.problems:
        print(problem)
    if report.problems:
        raise typer.Exit(3)
    print(f"{store} is sound: {report.images:,} images")


@app.command(epilog="Example: fastssl views digits --out v.png")
def views(
    config: Config,
    words: Overrides = None,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("views.png"),
) -> None:
    """Draw the weak and strong views of some images."""
    from fastssl.config.resolve import load
    from fastssl.engine.view_sheet import write_sheet

    print(write_sheet(load(config, words), out))


for _name, (_verb, _epilog) in {**sweep.VERBS, **inference.VERBS, **profile.VERBS}.items():
    app.command(_name, epilog=_epilog)(_verb)


def main() -> None:
    """Run the command; the console script."""
    try:
        try:
            code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        finally:
            sys.stdout.flush()  # a full disk behind it is told here, not after the end
        sys.exit(code)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except UsageError as error:
        print(f"error: {misused(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno is None:  # not of the system: a traceback tells more
            raise
        sys.exit(tell_of_system(error))


def misused(error: Any) -> ConfigError:
    """Put what the parser of the command line found into our two lines."""
    what = " ".join(error.format_message().split()).rstrip(".")
    verb = error.ctx.command_path if error.ctx else "fastssl"
    example = (error.ctx.command.epilog or "") if error.ctx else ""
    fix = f"type for example {example.removeprefix('Example: ')}; " if example else ""
    return ConfigError(f"{verb}: {what[0].lower()}{what[1:]}", f"{fix}{verb} --help tells more")


def tell_of_system(error: OSError) -> int:
    """Say in two lines what the system refused; return the exit code."""
    from contextlib import suppress

    from fastssl.errors import system_error

    told = system_error(error)
    with suppress(OSError, ValueError):
        print(f"error: {told}", file=sys.stderr)
    with suppress(OSError, ValueError):  # what stdout still holds would fail again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return told.exit_code
