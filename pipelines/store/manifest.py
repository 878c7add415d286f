"""The manifest of a store: `dataset.json`, its own checksum included."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from pipelines.errors import DataError

NAME = "dataset.json"
KIND = "fastssl store"
VERSION = 2  # 2: a checksum for every image

_BLOCK = 1 << 20


def render(content: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest, with the checksum of its content as the last entry."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(_dump(content)).hexdigest()
    return _dump({**content, "sha256": digest})


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode("ascii")


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Return the content of a manifest; any changed byte, even of white space, is an error."""
    try:
        content = json.loads(data)
        kind, version = content["kind"], content["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path) from None
    if kind != KIND:
        raise _damaged(path)
    if version != VERSION:
        raise DataError(
            f"{path} has format version {version}; this fastssl reads version {VERSION}",
            "convert the data again, or use the fastssl that wrote it",
        )
    if render(content) != data:
        raise _damaged(path)
    if not _plausible(content):
        raise DataError(f"{path} is not as `convert` writes it", "convert the data again")
    return dict(content)


def _plausible(content: dict[str, Any]) -> bool:
    """Return True if a manifest has the entries that `convert` writes, with plausible values."""
    try:
        names = [content["name"], *content["class_names"]]
        files = [*content["files"], *content["splits"]]
        lists = [split["shards"] for split in content["splits"].values()]
        numbers = [content["classes"], *(f["size"] for f in content["files"].values())]
        for split in content["splits"].values():
            numbers += [split["count"], split["height"], split["width"]]
        return (
            all(isinstance(name, str) for name in names)
            and len(content["class_names"]) == content["classes"]
            # A name must not lead out of the folder.
            and all(file == Path(file).name != ".." for file in files)
            and all(isinstance(shards, list) for shards in lists)
            and all(shard in content["files"] for shards in lists for shard in shards)
            and all(type(number) is int and number >= 0 for number in numbers)
            and all(isinstance(file["sha256"], str) for file in content["files"].values())
            and all(split["encoding"] in ("raw", "jpeg") for split in content["splits"].values())
            and all(len(content[key]) == 3 for key in ("mean", "std"))
            and all(math.isfinite(value) for value in [*content["mean"], *content["std"]])
            and all(value > 0 for value in content["std"])
            and set() < {*content["formats"]} <= {"ffcv", "dali"}
            and content["resize"] in ("squash", "crop", "pad")
            and isinstance(content["skipped"], list)
            and "train" in content["splits"]
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return False


def _damaged(path: Path) -> DataError:
    return DataError(
        f"{path} is damaged: it does not agree with its own checksum",
        "restore it from a copy, or convert the data again",
    )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return file_digest(path, "sha256")


def file_digest(path: Path, kind: str) -> str:
    """Return a checksum of a file, read in blocks."""
    checksum = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return checksum.hexdigest()
