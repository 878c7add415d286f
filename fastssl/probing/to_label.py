"""The files of `choose`: images to label as CSV or for Label Studio, and a sheet to look at.

Labels that a store has already are written, too, so that `convert --labels` keeps them.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fastssl.errors import ConfigError, writing
from fastssl.inference.contact_sheet import render, thumbnail
from fastssl.probing.graph import Indices
from pipelines.files import open_atomic, write_atomic
from pipelines.store.store import Store
from pipelines.text import for_csv, from_csv

FORMATS = ("csv", "labelstudio")
TEMPLATE = Path(__file__).with_suffix(".html")
MOST_SHOWN = 1_000  # images on a sheet; nobody would look at more


def check_format(form: str) -> None:
    """Raise if there is no such format."""
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}", f"use --format {' or '.join(FORMATS)}")


def check_out(store: Store, out: Path) -> None:
    """Raise if what would be overwritten are labels that the store does not have."""
    if out.suffix == ".html":
        raise ConfigError(f"{out} is the name of the sheet", "end --out in .csv or .json")
    if out.suffix != ".csv" or not out.is_file():
        return
    paths, labels = store.source_paths("train"), store.labels("train")
    known = {paths[index] for index in np.flatnonzero(labels >= 0)}
    try:
        with out.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            filled = {from_csv(row[0]) for row in csv.reader(file) if len(row) > 1 and row[1]}
    except (OSError, csv.Error) as error:
        raise ConfigError(f"{out} cannot be read: {error}", "take another --out") from error
    if found := len(filled - known - {"path"}):
        raise ConfigError(
            f"{out} has {found:,} labels that {store.path} has not",
            "convert the images with --labels FILE first, or take another --out",
        )


def write(store: Store, chosen: Indices, out: Path, form: str) -> None:
    """Write the chosen images without a label, in their order, then those that have one."""
    paths, labels = store.source_paths("train"), store.labels("train")
    rows = [(paths[index], "") for index in chosen]
    known = np.setdiff1d(np.flatnonzero(labels >= 0), chosen)
    rows += [(paths[index], store.class_names[labels[index]]) for index in known]
    with open_atomic(out) as file:
        if form == "csv":
            cells = [("path", "label"), *((for_csv(path), for_csv(name)) for path, name in rows)]
            csv.writer(file, lineterminator="\n").writerows(cells)
        else:
            json.dump([_task(path, name, document_root(store)) for path, name in rows], file)


def document_root(store: Store) -> str:
    """Return the folder that holds all images: what Label Studio is allowed to read."""
    paths = store.source_paths("train")
    if not all(map(os.path.isabs, paths)):
        raise ConfigError(f"the images of {store.path} are not files", "use --format csv")
    return os.path.commonpath([os.path.dirname(path) for path in paths])


def _task(path: str, label: str, root: str) -> dict[str, Any]:
    """Return a task in the form that Label Studio imports; `path` comes back in its export."""
    inside = quote(os.path.relpath(path, root), errors="surrogateescape")
    task: dict[str, Any] = {"data": {"image": f"/data/local-files/?d={inside}", "path": path}}
    if label:
        choice = {"from_name": "label", "to_name": "image", "type": "choices"}
        task["annotations"] = [{"result": [{**choice, "value": {"choices": [label]}}]}]
    return task


def write_sheet(store: Store, chosen: Indices, out: Path) -> None:
    """Write the chosen images as one HTML file."""
    paths = store.source_paths("train")
    shown = [
        {"path": paths[index], "name": Path(paths[index]).name, "png": thumbnail(store, int(index))}
        for index in chosen[:MOST_SHOWN]
    ]
    with writing(out):
        write_atomic(out, render(TEMPLATE, images=shown, total=len(chosen)).encode())
