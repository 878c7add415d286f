"""The state of cells on disk: a sweep's list, and whether a cell is trained or being trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, OnErrorOmit, StrictInt, StrictStr, TypeAdapter

from fastssl import plugins
from fastssl.config.resolve import flatten, saved_values
from fastssl.config.schema import RunConfig, keys_that_may_differ
from fastssl.errors import DataError
from fastssl.sweep.grid import Cell, format_value
from fastssl.tracking.run_dir import COMPLETE, LOCK, RunFolder
from pipelines import files
from pipelines.datasets import DATASETS
from pipelines.store.store import Store, default_place, open_store

SWEEP_FILE = "sweep.json"  # the cells of a sweep and their exit codes; `fastssl report` reads it
LARGEST = 2**22  # bytes of a JSON file; the names of 20,000 classes take a quarter of it


class SweepCell(BaseModel):
    """A cell in sweep.json."""

    name: StrictStr
    data: Any = None
    labels: Any = None
    algorithm: Any = None
    keys: dict[str, Any] = {}  # what overrides the configuration
    exit: StrictInt | None = None  # None if it has not ended yet


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if there is none that can be read."""
    try:
        found = files.read_json(path, LARGEST)
    except (OSError, DataError):
        return {}
    return found if isinstance(found, dict) else {}


def read_summary(folder: Path) -> dict[str, Any]:
    """Return summary.json of a run, or {} if there is none that can be read."""
    return read_json(folder / "summary.json")


def read_cells(folder: Path) -> list[SweepCell]:
    """Return the cells in the list of a sweep, without damaged ones."""
    rows = read_json(folder / SWEEP_FILE).get("cells")
    adapter = TypeAdapter(list[OnErrorOmit[SweepCell]])
    return adapter.validate_python(rows if isinstance(rows, list) else [])


def is_done(folder: Path) -> bool:
    """Return True if a cell has been trained to its end."""
    return RunFolder(folder).started() and read_summary(folder).get("status") in COMPLETE


def changes(folder: Path, cell: Cell) -> list[str]:
    """Return the settings and files of a cell that are not those its run was started with.

    Compared is the whole configuration, but for keys that do not change a run's numbers. The
    precision `auto` depends on the device and stands for what it chose then.
    """
    run_folder = RunFolder(folder)
    if not run_folder.started():
        return []
    try:
        saved = saved_values(run_folder.read_config())
    except DataError:  # the cell's own process reports it
        return []
    wanted = flatten({**cell.resolved.as_dict(), **cell.resolved.config.averages()})
    found = [
        f"{key}={format_value(wanted[key])} instead of {format_value(saved.get(key))}"
        for key in wanted.keys() - keys_that_may_differ("resume")
        # An earlier version may not have had the key: its default is what the run was made with.
        if wanted[key] != saved.get(key) and (key in saved or key in cell.resolved.origins)
        if wanted[key] != "auto"
    ]
    inputs = read_json(run_folder.environment).get("inputs")
    inputs = inputs if isinstance(inputs, dict) else {}  # version 0.1.0 wrote none
    for key, content in plugins.file_hashes(wanted).items():
        if inputs.get(key, content) != content:
            found.append(f"another content of {wanted[key]}")
    store = find_store(cell.resolved.config) if "store" in inputs else None
    if store and not store.matches(inputs["store"]):
        found.append(f"other images or labels in {store.path}")
    return sorted(found)


def find_store(config: RunConfig) -> Store | None:
    """Return the store of a configuration if there is one; converts nothing and runs no code."""
    if config.store is None and config.data not in DATASETS:
        return None
    try:
        return open_store(config.store or default_place(config.data))
    except DataError:  # a cell that is done needs no store
        return None


def is_locked(folder: Path) -> bool:
    """Return True if a process is writing a run folder now. Needs no permission to write."""
    return files.is_locked(folder / LOCK)
