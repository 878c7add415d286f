"""Tasks for Label Studio, and what it must be told to serve their images.

Label Studio serves a local file only if it lies in a storage of a project, and a storage only if it
lies below LOCAL_FILES_DOCUMENT_ROOT: the root itself is refused. The root is therefore the folder
above that of the images.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fastssl.errors import ConfigError
from pipelines.store.store import Store

SERVE = "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED"
ROOT = "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT"


class LocalFiles(NamedTuple):
    """The folders that Label Studio is allowed to read."""

    root: Path  # the document root: tasks name images relative to it
    storages: list[Path]  # folders below it that hold all images


def local_files(store: Store) -> LocalFiles:
    """Return the folder above the images, and that of the images."""
    paths = store.source_paths("train")
    if not all(map(os.path.isabs, paths)):
        raise ConfigError(f"the images of {store.path} are not files", "use --format csv")
    folders = {os.path.normpath(os.path.dirname(path)) for path in paths}  # --unlabeled ../more
    common = Path(os.path.commonpath(folders))
    for folder in (common, *common.parents):
        if folder.name == store.manifest.name:  # the folder that was converted
            return LocalFiles(folder.parent, [folder])
    others = folders - {str(common)}
    below = sorted({common / Path(one).relative_to(common).parts[0] for one in others})
    if others == folders and (len(below) == 2 or common == common.parent):
        return LocalFiles(common, below)  # images and --unlabeled, which may lie far apart
    return LocalFiles(common.parent, [common])


def task(path: str, label: str, root: Path) -> dict[str, Any]:
    """Return a task in the form that Label Studio imports; `path` comes back in its export."""
    inside = quote(os.path.relpath(path, root), errors="surrogateescape")
    found: dict[str, Any] = {"data": {"image": f"/data/local-files/?d={inside}", "path": path}}
    if label:
        choice = {"from_name": "label", "to_name": "image", "type": "choices"}
        found["annotations"] = [{"result": [{**choice, "value": {"choices": [label]}}]}]
    return found


def exported(out: Path) -> Path:
    """Return the name that the export of the labeled tasks is given."""
    return out.with_name(f"{out.stem}-labeled.json")


def instructions(files: LocalFiles, out: Path) -> dict[str, Any]:
    """Return the command that starts Label Studio, and what to do in it before `next`."""
    folders = ", ".join(map(str, files.storages))
    start = [f"{SERVE}=true", f"{ROOT}={shlex.quote(str(files.root))}", "label-studio"]
    return {
        "start": " ".join(start),
        "storages": [str(folder) for folder in files.storages],
        "steps": [
            f"in its Settings > Cloud Storage, add Local Files: {folders}; save, do not sync",
            f"import {out}, label, and export the tasks as JSON to {exported(out)}",
        ],
    }
