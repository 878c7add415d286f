"""The entry point of the command, and the verbs for data, configuration and training.

torch is imported only by the verbs that need it, so that --help is fast. A mistake of the user
gives two lines on stderr and an exit code, never a traceback.
"""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fastssl.cli import profile
from fastssl.cli.app import Config, Json, Overrides, TrustCode, app
from fastssl.errors import ConfigError, UserError, memory_error, system_error
from fastssl.tracking.console import clean_lines
from fastssl.tracking.streams import discard_stdout, reader_has_ended, repair_streams
from pipelines.text import for_terminal

UsageError: Any = typer.BadParameter.__mro__[1]  # typer gives its base no public name


@app.command(epilog="Example: fastssl train cifar10 labels=250 --out runs/a")
def train(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Start, or continue.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Try it, write nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the time of a step as JSON.")
    ] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume although inputs have changed.")
    ] = False,
    trust_code: TrustCode = False,
) -> None:
    """Train a model."""
    if as_json and not dry_run:
        raise ConfigError("--json is given without --dry-run", "add --dry-run or drop --json")
    from fastssl.config.resolve import load

    resolved = load(config, overrides, trust_code=trust_code)
    from fastssl.engine.launch import run_training

    changes = {"as_json": as_json, "accept_changes": accept_changes}
    raise typer.Exit(run_training(resolved, out, resume, dry_run, **changes))


@app.command(epilog="Example: fastssl config cifar10 labels=250")
def config(
    config: Annotated[str | None, typer.Argument(help="A configuration's name, or YAML.")] = None,
    overrides: Overrides = None,
    from_torchssl: Annotated[
        Path | None, typer.Option(help="Print a TorchSSL or USB YAML as ours.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Show every setting, its value, where it comes from and what it does."""
    if from_torchssl:
        from fastssl.cli.inference import migrate

        migrate(from_torchssl)
        return
    if config is None:
        raise ConfigError("no configuration is given", "fastssl config digits")
    from fastssl.cli.listing import configuration
    from fastssl.config.resolve import load
    from fastssl.tracking.tables import show

    show(configuration(load(config, overrides, trust_code=trust_code, complete=False)), as_json)


@app.command(name="list", epilog="Example: fastssl list algorithms")
def list_(
    kind: Annotated[str, typer.Argument(help="algorithms, datasets, models, readers, configs.")],
    as_json: Json = False,
) -> None:
    """List what can be chosen."""
    from fastssl.cli.listing import rows
    from fastssl.tracking.tables import show

    show(rows(kind), as_json)


@app.command(epilog="Example: fastssl convert photos data/pets --unlabeled more --size 32")
def convert(
    source: Annotated[str, typer.Argument(help="A standard name, a folder of images, or .npz.")],
    out: Annotated[Path | None, typer.Argument(help="Folder of the new store.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder with the files of a standard set.")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a standard set.")] = False,
    formats: Annotated[str, typer.Option("--format", help="dali, ffcv or ffcv,dali.")] = "dali",
    size: Annotated[int | None, typer.Option(help="Side of the stored images.")] = None,
    resize: Annotated[str | None, typer.Option(help="squash, crop or pad.")] = None,
    interpolation: Annotated[str, typer.Option(help="bicubic or bilinear.")] = "bicubic",
    quality: Annotated[int | None, typer.Option(help="JPEG quality; 0 stores RAW.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.")] = None,
    unlabeled: Annotated[Path | None, typer.Option(help="Images without a label.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV of path,label, or Label Studio's JSON; the rest has no label."),
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="No image has a label.")] = False,
    train_list: Annotated[
        Path | None, typer.Option(help="CSV of path,label; the rest is left out.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Class folders to test on.")] = None,
    test_list: Annotated[Path | None, typer.Option(help="CSV of path,label to test on.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Share to test on.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses the test images.")] = 0,
    on_error: Annotated[str, typer.Option(help="stop or skip at a bad image.")] = "stop",
    follow: Annotated[bool, typer.Option("--follow", help="Follow links out.")] = False,
    no_extra: Annotated[bool, typer.Option("--no-extra", help="SVHN without extra.")] = False,
) -> None:
    """Convert a dataset into a store that is read at full rate."""
    given = dict(locals())  # parameters, all but the first two with the names of Options' fields
    del given["source"], given["out"]
    from fastssl.conversion import convert as run
    from pipelines.convert import Options

    store = run(source, out, Options(**given))
    path = for_terminal(shlex.quote(str(store.path)))
    print(f"{path}: next: fastssl verify {path}")


@app.command(epilog="Example: fastssl verify data/pets")
def verify(
    store: Annotated[Path, typer.Argument(help="Folder of a store.")],
    sample: Annotated[int | None, typer.Option(help="Decode only this many images.")] = None,
) -> None:
    """Check every byte of a store."""
    from fastssl.conversion import verify as run

    report = run(store, sample=sample)
    for problem in report.problems:
        print(for_terminal(problem))
    if report.problems:
        raise typer.Exit(3)
    print(f"{for_terminal(str(store))} is sound: {report.images:,} images")


@app.command(epilog="Example: fastssl views digits --out v.png")
def views(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("views.png"),
    trust_code: TrustCode = False,
) -> None:
    """Draw the weak and strong views of some images."""
    from fastssl.config.resolve import load
    from fastssl.engine.view_sheet import write_sheet

    print(write_sheet(load(config, overrides, trust_code=trust_code), out))


# Imported here because importing registers the verbs, and --help lists them in that order.
from fastssl.cli import inference, probing, sweep  # noqa: E402, F401

app.add_typer(profile.app, name="profile")


def main() -> None:
    """Run the command; the console script."""
    repair_streams()
    try:
        try:
            code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        finally:
            sys.stdout.flush()  # reports a full disk here, not in the interpreter's shutdown
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except (Exception, SystemExit) as error:
        code = explain(error)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the interpreter's shutdown
    sys.exit(code)


def explain(error: Exception | SystemExit) -> int:
    """Print what the user can do about an error; return the exit code, or raise if it is a bug."""
    if isinstance(error, UserError):
        return report(error)
    if isinstance(error, UsageError):
        return report(usage_error(error))
    if broken_pipe(error):
        discard_stdout()
        return 0
    if isinstance(error, OSError) and error.errno is not None:
        discard_stdout()  # the disk behind it may be full
        return report(system_error(error))
    if isinstance(error, Exception) and (found := memory_error(error)):
        return report(found)
    raise error


def broken_pipe(error: Exception | SystemExit) -> bool:
    """Return True if nobody reads stdout any more. typer turns that into SystemExit(1).

    rich does so too, for --help, and has replaced stdout by then.
    """
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
        return True
    return isinstance(error, BrokenPipeError | SystemExit) and reader_has_ended()


def report(error: UserError) -> int:
    """Print an error in two lines; return the exit code."""
    print(clean_lines(f"error: {error}"), file=sys.stderr)
    return error.exit_code


def usage_error(error: Any) -> ConfigError:
    """Return a mistake on the command line, found by the parser, as an error of two lines."""
    what = " ".join(error.format_message().split()).rstrip(".")
    verb = error.ctx.command_path if error.ctx else "fastssl"
    example = (error.ctx.command.epilog or "") if error.ctx else ""
    fix = f"type for example {example.removeprefix('Example: ')}; " if example else ""
    return ConfigError(f"{verb}: {what[0].lower()}{what[1:]}", f"{fix}see {verb} --help")
