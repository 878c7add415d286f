"""A converted dataset: its manifest, and its images by index."""

import csv
import hashlib
import json
import os
import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import DataError
from pipelines.files import read_limited
from pipelines.store import index, manifest
from pipelines.store.records import Pixels, Records, Stored

MOST_MANIFEST = 64 << 20  # bytes; it lists the classes, the files and the images left out


class Store:
    """A folder that `convert` wrote, read without any extra installed."""

    def __repr__(self) -> str:
        counts = ", ".join(f"{info.count:,} {name}" for name, info in self.splits.items())
        return f"<Store {self.path}: {counts} images, {self.classes} classes>"

    def __init__(self, path: Path, content: manifest.Manifest, manifest_digest: str) -> None:
        self.path = path
        self.manifest = content
        self.manifest_digest = manifest_digest
        self.name = content.name
        self.classes = content.classes
        self.class_names = content.class_names
        self.mean = content.mean
        self.std = content.std
        self.formats = content.formats
        self.splits = content.splits
        self._records: dict[str, Records] = {}
        self._stored: dict[tuple[str, str], Stored] = {}

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of all images, labels and classes, the same wherever they were converted.

        It covers neither paths nor formats, so a store copied, or converted again from the same
        files on another machine, is the same data.
        """
        about = [self.class_names, self.mean, self.std]
        for name, info in sorted(self.splits.items()):
            about.append([name, info.count, info.height, info.width, info.encoding])
        checksum = hashlib.sha256(json.dumps(about).encode())
        for name in sorted(self.splits):
            records = self.records(name)
            for column in ("size", "crc", "label"):
                checksum.update(records[column].tobytes())
        return checksum.hexdigest()

    def matches(self, saved: str) -> bool:
        """Return True if a run has saved the fingerprint of this store.

        Version 0.1.0 saved the checksum of the manifest instead, which covers absolute paths.
        """
        return saved in (self.fingerprint, self.manifest_digest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a path: memory maps cannot be pickled."""
        return (open_store, (self.path,))

    def labels(self, split: str) -> npt.NDArray[np.int64]:
        """Return the label of every image, -1 where it has none."""
        return self.records(split)["label"].astype(np.int64)

    def source_paths(self, split: str) -> list[str]:
        """Return where every image came from: a file, or an index into the publisher's file."""
        return self._sources[split]

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        paths: dict[str, list[str]] = {split: [] for split in self.splits}
        try:
            for number, split, _, source in index.read_rows(self.path / index.NAME):
                if number != len(paths[split]) or number >= self.splits[split].count:
                    raise ValueError(f"image {number} of {split} is out of order")
                paths[split].append(source)
        except (OSError, ValueError, KeyError, csv.Error):
            raise _incomplete(self.path, f"{index.NAME} can't be read") from None
        if any(len(paths[split]) != info.count for split, info in self.splits.items()):
            raise _incomplete(self.path, f"{index.NAME} does not list every image")
        return paths

    def beton(self, split: str) -> Path:
        """Return the FFCV file of a split."""
        self._require("ffcv")
        return self.path / f"{split}.beton"

    def shards(self, split: str) -> list[Path]:
        """Return the tar files of a split; each has its DALI index beside it, as `.idx`."""
        self._require("dali")
        return [self.path / name for name in self.splits[split].shards]

    def _require(self, form: str) -> None:
        if form not in self.formats:
            raise DataError(
                f"{self.path} holds no {form} files, only {', '.join(self.formats)}",
                self.convert_line(form),
            )

    def convert_line(self, form: str) -> str:
        """Return what to type to get this dataset in another format."""
        # Only standard datasets have terms of use. The source of other images is not recorded.
        source = self.name if self.manifest.terms else "SOURCE"
        out = shlex.quote(f"{self.path}-{form}")
        return f"fastssl convert {source} {out} --format {form}, then use store={out}"

    def records(self, split: str) -> Records:
        """Return the index of a split, mapped from its file: 28 bytes an image."""
        if split not in self._records:
            self._records[split] = self._load_records(split)
        return self._records[split]

    def _load_records(self, split: str) -> Records:
        path, info = self.path / f"{split}.npy", self.splits[split]
        try:
            sound = manifest.digest(path) == self.manifest.files[path.name].sha256
            found: Records = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception:  # the header of a crafted file may raise almost anything
            sound = False
        if not sound:
            raise _incomplete(path, f"it disagrees with {manifest.NAME}")
        why = self._records_problem(found, split, info)
        if why:
            raise _incomplete(path, why)
        return found

    def _records_problem(self, found: Records, split: str, info: manifest.SplitInfo) -> str | None:
        """Return what is wrong with the index of a split.

        Compiled code reads the files at these offsets without a check of its own: one that leads
        out of a file would crash the process.
        """
        if found.dtype != index.RECORD or found.shape != (info.count,):
            return "it is not the index of this split"
        if ((found["label"] < -1) | (found["label"] >= self.classes)).any():
            return f"it has labels that are none of the {self.classes} classes"
        if "dali" in self.formats:
            if (found["shard"] >= len(info.shards)).any():
                return "it names a file that does not exist"
            sizes = np.array([self.manifest.files[name].size for name in info.shards], np.uint64)
            if _leads_out(found["offset"], found["size"], sizes[found["shard"]], sizes.sum()):
                return "it leads out of a tar file"
        if "ffcv" in self.formats:
            size = np.uint64(self.manifest.files[f"{split}.beton"].size)
            if _leads_out(found["beton"], found["size"], size, size):
                return "it leads out of the .beton file"
        if info.encoding == "raw" and (found["size"] != info.height * info.width * 3).any():
            return "its images have other sizes than the split"
        return None

    def stored(self, split: str, form: str | None = None) -> Stored:
        """Return the stored images of a split; by default from the tar files if there are any."""
        form = form or ("dali" if "dali" in self.formats else "ffcv")
        if (split, form) not in self._stored:
            files = self.shards(split) if form == "dali" else [self.beton(split)]
            records, info = self.records(split), self.splits[split]
            self._stored[split, form] = Stored(split, info, form, files, records)
        return self._stored[split, form]

    def encoded(self, split: str, index: int) -> memoryview:
        """Return the stored bytes of one image: its pixels, or its JPEG."""
        return self.stored(split).get(np.array([index]))[0].data

    def image(self, split: str, index: int) -> Pixels:
        """Return the pixels of one image, [height, width, 3]; those of a raw store are mapped."""
        count = self.splits[split].count
        if not 0 <= index < count:
            raise IndexError(f"image {index} of {count} in split {split!r}")
        return self.stored(split).decode(index)


def _leads_out(start: Records, size: Records, end: Any, total: Any) -> bool:
    """Return True if a range extends over the end of its file, or all of them over `total` bytes.

    No sum is made that overflows. Images that share bytes would let a small store fill the memory.
    """
    outside = (size < 1) | (size > end) | (start > end - np.minimum(size, end))
    return bool(outside.any() or size.sum(dtype=np.uint64) > total)


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a converted dataset; the sizes of its files are checked, their content is not."""
    folder = Path(path).absolute()
    content, digest = read_manifest(folder)
    for name, entry in content.files.items():
        try:
            size = (folder / name).stat().st_size
        except FileNotFoundError:
            raise _incomplete(folder, f"{name} is missing") from None
        except (OSError, ValueError) as error:
            raise _incomplete(folder, f"{index.escape(name)}: {error}") from None
        if size != entry.size:
            raise _incomplete(folder, f"{name} has {size:,} bytes, not {entry.size:,}")
    return Store(folder, content, digest)


def read_manifest(folder: Path) -> tuple[manifest.Manifest, str]:
    """Return the content of `dataset.json`, and its SHA-256."""
    file = folder / manifest.NAME
    try:
        data = read_limited(file, MOST_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(folder) from None
    except OSError as error:
        raise _incomplete(file, error.strerror or str(error)) from None
    return manifest.parse(data, file), hashlib.sha256(data).hexdigest()


def _missing(folder: Path) -> DataError:
    if folder.is_dir():
        return DataError(
            f"{folder} is not a converted dataset: it holds no {manifest.NAME}",
            f"fastssl convert {shlex.quote(str(folder))} OUT, then give OUT",
        )
    return DataError(
        f"there is no converted dataset at {folder}",
        f"fastssl convert SOURCE {shlex.quote(str(folder))}",
    )


def _incomplete(folder: Path, why: str) -> DataError:
    return DataError(f"{folder} is damaged: {why}", "restore it, or convert the data again")


def default_place(name: str) -> Path:
    """Return the default folder of a store or of raw data: $FASTSSL_DATA/NAME, else data/NAME."""
    return Path(os.environ.get("FASTSSL_DATA") or "data") / name
