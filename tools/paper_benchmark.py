"""The paper's benchmark from raw data to a report: convert what is missing, sweep, report.

    python tools/paper_benchmark.py small
    python tools/paper_benchmark.py table1 --root raw --download --jobs 8

Run it again after an interruption: stores that are there are kept, and the sweep goes on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from fastssl.errors import ConfigError, UserError
from fastssl.sweep import grid
from fastssl.sweep.runner import matches


def main(words: list[str] | None = None) -> int:
    """Do the three steps; stop at the first that fails."""
    parser = argparse.ArgumentParser(description="Raw data to report, one command.")
    parser.add_argument("sweep", help="table1, imagenet, ablations, step_time, small or a file")
    parser.add_argument("--root", help="folder of the raw files; default: that of `convert`")
    parser.add_argument("--download", action="store_true", help="fetch raw data where possible")
    parser.add_argument("--out", type=Path, help="folder of the runs; default: runs/NAME")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; one a GPU")
    parser.add_argument("--only", help="train only the cells whose name holds this")
    given = parser.parse_args(words)
    try:
        name, cells = grid.read(grid.find_sweep(given.sweep))
        cells = [cell for cell in cells if given.only is None or matches(cell.name, given.only)]
        if not cells:
            raise ConfigError(f"no cell of {name} matches {given.only!r}", "take another --only")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    out = given.out or Path("runs") / name
    for data in sorted({cell.resolved.config.data for cell in cells} - {"own"}):
        code = convert(data, given.root, given.download)
        if code:
            return code
    swept = fastssl("sweep", given.sweep, "--out", str(out), *options(given))
    if swept >= 128:  # interrupted: the same line goes on
        return swept
    return fastssl("report", str(out), "--out", str(out / "report.html")) or swept


def options(given: argparse.Namespace) -> list[str]:
    """Return the options that go to `fastssl sweep`."""
    found = ["--jobs", str(given.jobs)]
    return [*found, "--only", given.only] if given.only else found


def convert(data: str, root: str | None, download: bool) -> int:
    """Convert a dataset unless its store is there; return the exit code."""
    store = Path(os.environ.get("FASTSSL_DATA", "data")) / data
    if (store / "dataset.json").is_file():
        print(f"{store} is there already", file=sys.stderr)
        return 0
    extra = ["--root", root] if root else []
    extra += ["--download"] if download else []
    return fastssl("convert", data, str(store), *extra)


def fastssl(*words: str) -> int:
    """Print the command of a verb, then run it."""
    print("$ fastssl", *words, file=sys.stderr, flush=True)
    return subprocess.run([sys.executable, "-m", "fastssl", *words]).returncode


if __name__ == "__main__":
    sys.exit(main())
