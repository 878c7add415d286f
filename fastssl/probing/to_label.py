"""The files of `choose`: images to label as CSV or for Label Studio, and a sheet to look at.

Labels that a store has already are written, too, so that `convert --labels` keeps them.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from fastssl.errors import ConfigError, writing
from fastssl.inference.contact_sheet import CELL, render, thumbnail
from fastssl.inference.label import next_command
from fastssl.probing import label_studio
from fastssl.probing.graph import Indices
from fastssl.probing.label_studio import LocalFiles
from pipelines.errors import DataError
from pipelines.files import open_atomic, write_atomic
from pipelines.sources.label_studio import read_tasks
from pipelines.store.store import Store
from pipelines.text import for_csv, from_csv

SUFFIXES = {"csv": ".csv", "labelstudio": ".json"}  # of the files of a format
TEMPLATE = Path(__file__).with_suffix(".html")
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error, DataError)
MOST_SHOWN = 1_000  # images on a sheet; nobody would look at more
FEW, LARGE = 100, 224  # images that are shown large, to tell similar classes apart, and their side


def file_of(form: str, out: Path | None) -> Path:
    """Return the file to write, whose suffix says to `convert` what it holds."""
    if form not in SUFFIXES:
        raise ConfigError(f"there is no format {form!r}", f"use --format {' or '.join(SUFFIXES)}")
    if out is None:
        return Path("to_label").with_suffix(SUFFIXES[form])
    suffix = out.suffix.lower()
    if suffix == ".html":
        raise ConfigError(f"{out} is the name of the sheet", f"end --out in {SUFFIXES[form]}")
    if (suffix == ".json") != (form == "labelstudio"):
        other = "labelstudio" if suffix == ".json" else "csv"
        raise ConfigError(
            f"{out} does not end as files of the format {form!r} do",
            f"end its name in {SUFFIXES[form]}, or take the format {other!r}",
        )
    return out


def check_out(store: Store, out: Path) -> None:
    """Raise if what would be overwritten are labels that the store does not have."""
    if not out.is_file():
        return
    paths, labels = store.source_paths("train"), store.labels("train")
    known = {paths[index] for index in np.flatnonzero(labels >= 0)}
    try:
        filled = {path for path, label in _read(store, out) if label}
    except UNREADABLE as error:
        why = error.what if isinstance(error, DataError) else error
        raise ConfigError(f"{out} cannot be read: {why}", "take another --out") from error
    if found := len(filled - known - {"path"}):
        raise ConfigError(
            f"{out} has {found:,} labels that {store.path} has not",
            "convert the images with --labels FILE first, or take another --out",
        )


def _read(store: Store, file: Path) -> list[tuple[str, str]]:
    """Return the paths and labels of an earlier file."""
    if file.suffix.lower() == ".json":
        return list(read_tasks(file, label_studio.local_files(store).storages[0]))
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        return [(from_csv(row[0]), row[1]) for row in csv.reader(text) if len(row) > 1]


def write(store: Store, chosen: Indices, out: Path, files: LocalFiles | None) -> dict[str, Any]:
    """Write the images to label and a sheet; return what was written, and what to do next.

    `files` are the folders of Label Studio; None: write CSV.
    """
    rows, sheet = rows_of(store, chosen), out.with_suffix(".html")
    with open_atomic(out) as file:
        if files is None:
            cells = [("path", "label"), *((for_csv(path), for_csv(name)) for path, name in rows)]
            csv.writer(file, lineterminator="\n").writerows(cells)
        else:
            json.dump([label_studio.task(path, name, files.root) for path, name in rows], file)
    write_sheet(store, chosen, sheet)
    done = {"images": len(chosen), "out": str(out), "sheet": str(sheet)}
    if files is None:
        return {**done, "next": next_command(store, out)}
    following = next_command(store, label_studio.exported(out))
    return {**done, **label_studio.instructions(files, out), "next": following}


def rows_of(store: Store, chosen: Indices) -> list[tuple[str, str]]:
    """Return path and label: the chosen images, in their order, then those that have a label."""
    paths, labels = store.source_paths("train"), store.labels("train")
    known = np.setdiff1d(np.flatnonzero(labels >= 0), chosen)
    rows = [(paths[index], "") for index in chosen]
    return rows + [(paths[index], store.class_names[labels[index]]) for index in known]


def write_sheet(store: Store, chosen: Indices, out: Path) -> None:
    """Write the chosen images as one HTML file."""
    paths = store.source_paths("train")
    side = LARGE if len(chosen) <= FEW else CELL  # a thousand large ones would take 100 MB
    shown = [
        {
            "path": paths[index],
            "name": Path(paths[index]).name,
            "png": thumbnail(store, index, side),
        }
        for index in chosen[:MOST_SHOWN].tolist()
    ]
    with writing(out):
        write_atomic(out, render(TEMPLATE, images=shown, total=len(chosen), side=side).encode())
