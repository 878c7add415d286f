"""The manifest of a store: `dataset.json`, its own checksum included."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pipelines.errors import DataError

NAME = "dataset.json"
KIND = "fastssl store"
VERSION = 2  # 2: a checksum for every image

_BLOCK = 1 << 20


def render(content: dict[str, Any]) -> bytes:
    """Write a manifest, with the checksum of its content as the last entry."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(_dump(content)).hexdigest()
    return _dump({**content, "sha256": digest})


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode("ascii")


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Read a manifest; a single changed byte, even of white space, is an error."""
    try:
        content = json.loads(data)
        kind, version = content["kind"], content["version"]
    except (ValueError, KeyError, TypeError):
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
    return dict(content)


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
