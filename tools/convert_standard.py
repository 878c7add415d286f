"""Convert every standard dataset whose files lie under a folder, and print a table.

    python tools/convert_standard.py --root RAW --out DATA

A dataset that is converted already, or whose files are not there, is skipped with a message.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from fastssl.conversion import convert
from fastssl.errors import ConfigError, DataError, UserError
from pipelines.convert import Options
from pipelines.datasets import DATASETS

COLUMNS = "{:<10} {:>10} {:>16} {:>9} {:>10}"


def main(words: list[str] | None = None) -> int:
    """Convert what is there; return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with the raw files")
    parser.add_argument("--out", type=Path, required=True, help="folder for the stores")
    parser.add_argument("--only", nargs="*", default=list(DATASETS), help="names of datasets")
    parser.add_argument("--format", default="dali", help="dali, ffcv or ffcv,dali")
    parser.add_argument("--workers", type=int, default=None, help="processes")
    asked = parser.parse_args(words)
    print(COLUMNS.format("dataset", "images", "bytes", "seconds", "images/s"), flush=True)
    code = 0
    for name in asked.only:
        try:
            print(line(name, asked.root, asked.out / name, asked.format, asked.workers), flush=True)
        except UserError as error:
            print(f"{name:<10} {error.what.splitlines()[0]}", flush=True)
            expected = isinstance(error, (DataError, ConfigError)) and _absent(error)
            code = code or (0 if expected else error.exit_code)
        except KeyboardInterrupt:
            print("interrupted; the same line goes on with what is left", file=sys.stderr)
            return 130
    return code


def line(name: str, root: Path, out: Path, formats: str, workers: int | None) -> str:
    """Convert one dataset and return its line of the table."""
    DATASETS[name]
    began = time.perf_counter()
    store = convert(name, out, Options(root=root, formats=formats, workers=workers))
    seconds = time.perf_counter() - began
    images = sum(info.count for info in store.splits.values())
    size = sum(entry.size for entry in store.manifest.files.values())
    return COLUMNS.format(
        name, f"{images:,}", f"{size:,}", f"{seconds:.1f}", f"{images / seconds:,.0f}"
    )


def _absent(error: UserError) -> bool:
    return "is missing" in error.what or "is not empty" in error.what


if __name__ == "__main__":
    sys.exit(main())
