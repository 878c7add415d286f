"""The manifest of a store: `dataset.json`, its own checksum included."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pipelines.errors import DataError
from pipelines.store import index

NAME = "dataset.json"
KIND = "fastssl store"
VERSION = 2  # 2: a checksum for every image
LARGEST_SIDE = 2**14  # pixels: views are computed in 16.16 fixed point


def _plain(name: str) -> str:
    """Refuse a file name that leads out of the folder."""
    if name != Path(name).name or name == "..":
        raise ValueError("not the name of a file")
    return name


FileName = Annotated[str, AfterValidator(_plain)]
Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
Color = Annotated[float, Field(allow_inf_nan=False)]
# JSON has no tuples: these fields accept lists, and are strict about what is in them.
Mean = Annotated[tuple[Color, Color, Color], Field(strict=False)]
Interpolation = Literal["bicubic", "bilinear"]
Names = Annotated[tuple[FileName, ...], Field(strict=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class FileInfo(_Entry):
    """A file of a store."""

    size: int = Field(ge=0)
    sha256: str


class SplitInfo(_Entry):
    """The images of one split; all have one size and one encoding."""

    count: int = Field(ge=1, le=index.MOST_IMAGES)
    labeled: int = 0
    height: Side
    width: Side
    encoding: Literal["raw", "jpeg"]
    shards: Names  # of the tar files; none where only .beton was written


class Manifest(_Entry):
    """What `convert` records about a store."""

    name: str
    terms: Any = None  # of use, for a standard dataset
    classes: int = Field(ge=0, le=index.MOST_CLASSES)
    class_names: list[str]
    mean: Mean
    std: Mean
    resize: Literal["squash", "crop", "pad"]
    interpolation: Interpolation = "bicubic"
    quality: Any = None
    pseudo_labels: int = 0  # of training images; chosen by a model, so nothing is measured on them
    formats: Annotated[tuple[Literal["ffcv", "dali"], ...], Field(strict=False, min_length=1)]
    splits: dict[FileName, SplitInfo]
    skipped: list[Any]
    files: dict[FileName, FileInfo]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        needed = {index.NAME}
        for name, split in self.splits.items():
            needed |= {f"{name}.npy", *split.shards}
            if "ffcv" in self.formats:
                needed.add(f"{name}.beton")
        if (
            "train" not in self.splits
            or not len(self.class_names) == len({*self.class_names}) == self.classes
            or min(self.std) <= 0
            or not needed <= {*self.files}
            or any(bool(split.shards) != ("dali" in self.formats) for split in self.splits.values())
        ):
            raise ValueError("the entries contradict each other")
        return self


def render(content: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest, with the checksum of its content as the last entry."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(_dump(content)).hexdigest()
    return _dump({**content, "sha256": digest})


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode("ascii")


def parse(data: bytes, path: Path) -> Manifest:
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
    try:
        return Manifest.model_validate(content)
    except ValueError:
        raise DataError(f"{path} is not as `convert` writes it", "convert the data again") from None


def _damaged(path: Path) -> DataError:
    return DataError(
        f"{path} is damaged: it does not agree with its own checksum",
        "restore it from a copy, or convert the data again",
    )


def digest(path: Path, kind: str = "sha256") -> str:
    """Return a checksum of a file."""
    with path.open("rb") as file:
        made = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
        return made.hexdigest()
