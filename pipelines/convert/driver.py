"""From a source to a store: one pass over the images, every format at once."""

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import index, manifest
from pipelines.convert import ffcv
from pipelines.convert.dali import TarWriter
from pipelines.convert.ffcv import BetonWriter
from pipelines.convert.pictures import RESIZES, Moments, Target
from pipelines.convert.place import building
from pipelines.convert.pool import Pool, cores
from pipelines.convert.worker import Prepared, prepare
from pipelines.errors import ConfigError, DataError
from pipelines.index import escape
from pipelines.sources import Chunk, Skipped, Source, SourceSplit

FORMATS = ("ffcv", "dali")
RAW_UP_TO = 96  # pixels; above, JPEG
QUALITY = 95
SIZES = range(4, 2049)
SHOWN = 10  # bad pictures told by name


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a source is stored; None stands for what the data set or this machine suggests."""

    formats: tuple[str, ...] | None = None
    size: int | None = None
    resize: str | None = None
    quality: int | str | None = None  # "raw", or 1..100 of JPEG
    workers: int | None = None
    on_error: str = "stop"  # or "skip"

    def check(self) -> None:
        """Refuse what cannot be, before any work is done."""
        for form in self.formats or ():
            if form not in FORMATS:
                raise ConfigError(f"no format is named {form!r}", f"take {' or '.join(FORMATS)}")
        if self.formats is not None and not self.formats:
            raise ConfigError("no format was named", f"take {' or '.join(FORMATS)}")
        if "ffcv" in (self.formats or ()) and not ffcv.installed():
            raise ConfigError(
                "the format ffcv needs the package ffcv, which is not installed",
                "pip install 'fastssl[ffcv]', or --format dali",
            )
        if self.size is not None and self.size not in SIZES:
            raise ConfigError(f"the size {self.size} is out of range", "take 4 to 2048 pixels")
        if self.resize is not None and self.resize not in RESIZES:
            raise ConfigError(f"no resize is named {self.resize!r}", f"take {', '.join(RESIZES)}")
        raw = self.quality in (None, "raw")
        if not raw and not (isinstance(self.quality, int) and 1 <= self.quality <= 100):
            raise ConfigError(f"no quality is named {self.quality!r}", "take raw, or 1 to 100")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"{self.workers} workers do nothing", "take at least 1")
        if self.on_error not in ("stop", "skip"):
            raise ConfigError(f"on-error cannot be {self.on_error!r}", "take stop or skip")

    def chosen_formats(self) -> tuple[str, ...]:
        """Return the formats to write, in a fixed order."""
        wanted = self.formats or (FORMATS if ffcv.installed() else ("dali",))
        return tuple(form for form in FORMATS if form in wanted)

    def load(self) -> None:
        """Import what the formats need."""
        if "ffcv" in self.chosen_formats():
            ffcv.load()

    def target(self, source: Source, split: SourceSplit) -> Target:
        """Return what the images of a split become."""
        size = self.size or split.size
        quality: int | None
        if isinstance(self.quality, int):
            quality = self.quality
        else:
            quality = QUALITY if self.quality is None and size > RAW_UP_TO else None
        measured = source.mean is None and split is source.splits["train"]
        return Target(size, self.resize or source.resize, quality, measured)


@dataclass
class _Result:
    """What the manifest says of the images written so far."""

    splits: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Future[Any]] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)
    moments: Moments = field(default_factory=Moments.zero)


def convert(
    source: Source,
    out: Path,
    options: Options | None = None,
    *,
    advance: Callable[[int], None] = lambda count: None,
    wait: bool = False,
) -> None:
    """Write `source` as a store at `out`, which is complete or absent whatever happens."""
    options = options or Options()
    options.check()
    check_source(source)
    with building(out, wait=wait) as folder, ExitStack() as stack:
        if folder is None:
            return
        result = _Result()
        pool = stack.enter_context(Pool(_workers(source, options)))
        hasher = stack.enter_context(ThreadPoolExecutor(1))
        rows = stack.enter_context((folder / index.NAME).open("w", encoding="utf-8", newline=""))
        rows.write(",".join(index.HEADER) + "\n")
        for name, split in source.splits.items():
            task = _SplitTask(name, split, options.target(source, split), folder, options)
            chunks = pool.map(split.chunks(), task.target) if task.parallel else task.alone()
            task.write(chunks, result, rows, advance)
            for file in task.files:
                result.files[file] = hasher.submit(_seal, folder / file)
        _judge(source, result, options)
        rows.close()
        result.files[index.NAME] = hasher.submit(_seal, folder / index.NAME)
        _write_manifest(folder, source, options, result)


def check_source(source: Source) -> None:
    """Refuse a source without images, or with more than a store can name."""
    if not source.splits.get("train") or not source.splits["train"].count:
        raise DataError(f"{source.name} has no training images", "look at the folder you named")
    if len(source.class_names) > index.MOST_CLASSES:
        raise DataError(f"more than {index.MOST_CLASSES:,} classes", "join some of them")
    if max(split.count for split in source.splits.values()) > index.MOST_IMAGES:
        raise DataError(f"more than {index.MOST_IMAGES:,} images in a split", "convert a part")


def _workers(source: Source, options: Options) -> int:
    chunks = max(split.count for split in source.splits.values()) // 32 + 1
    return min(options.workers or cores(), chunks)


class _SplitTask:
    """One split on its way to disk."""

    def __init__(
        self, name: str, split: SourceSplit, target: Target, folder: Path, options: Options
    ) -> None:
        self.name, self.split, self.target, self.folder = name, split, target, folder
        self.stop = options.on_error == "stop"
        self.formats = options.chosen_formats()
        self.files: list[str] = []
        # Pixels that stay as they are go straight to the writers: no process is faster.
        self.parallel = not (split.kept and target.quality is None and target.size == split.size)

    def alone(self) -> Iterator[tuple[Chunk, Prepared]]:
        """Prepare the chunks in this process."""
        return ((chunk, prepare(chunk, self.target)) for chunk in self.split.chunks())

    def write(
        self,
        chunks: Iterator[tuple[Chunk, Prepared]],
        result: _Result,
        rows: Any,
        advance: Callable[[int], None],
    ) -> None:
        """Write every chunk in every format; after the first bad picture, only look for more."""
        tar, beton = self._open()
        records = np.zeros(self.split.count, index.RECORD)
        count = 0
        try:
            for chunk, prepared in chunks:
                result.bad.extend(prepared.bad)
                advance(len(chunk.labels))
                if not prepared.kept or (result.bad and self.stop):
                    continue
                result.moments.add(prepared.moments)
                labels = np.asarray(chunk.labels, np.int64)[prepared.kept]
                part = _write_chunk(prepared.images, labels, count, tar, beton)
                paths = [chunk.paths[place] for place in prepared.kept]
                rows.write(index.rows(self.name, count, labels.tolist(), paths))
                records[count : count + len(part)] = part
                count += len(part)
            shards = self._close(tar, beton, records[:count]) if count else []
        finally:
            for writer in (tar, beton):
                if writer is not None:
                    writer.abandon()
        result.splits[self.name] = {
            "count": count,
            "labeled": int((records["label"][:count] >= 0).sum()),
            "height": self.target.size,
            "width": self.target.size,
            "encoding": self.target.encoding,
            "shards": shards,
        }

    def _open(self) -> tuple[TarWriter | None, BetonWriter | None]:
        arguments = (
            self.folder, self.name, self.target.encoding, (self.target.size, self.target.size),
        )  # fmt: skip
        return (
            TarWriter(*arguments) if "dali" in self.formats else None,
            BetonWriter(*arguments, self.split.count) if "ffcv" in self.formats else None,
        )

    def _close(self, tar: TarWriter | None, beton: BetonWriter | None, records: Any) -> list[str]:
        shards = tar.close() if tar is not None else []
        self.files += [name for tar in shards for name in (tar, Path(tar).stem + ".idx")]
        if beton is not None:
            self.files += beton.close()
        np.save(self.folder / f"{self.name}.npy", records)
        self.files.append(f"{self.name}.npy")
        return shards


def _write_chunk(
    images: Any, labels: Any, first: int, tar: TarWriter | None, beton: BetonWriter | None
) -> Any:
    if tar is not None:
        records = tar.add(images, labels, first)
    else:
        records = np.zeros(len(labels), index.RECORD)
        records["label"] = labels
        records["size"] = [memoryview(image).nbytes for image in images]
    if beton is not None:
        records["beton"] = beton.add(images, labels, first)
    records["crc"] = [zlib.crc32(image) for image in images]
    return records


def _judge(source: Source, result: _Result, options: Options) -> None:
    """Stop where pictures are bad and the user did not ask to leave them out."""
    bad = result.bad
    if bad and options.on_error == "stop":
        shown = "".join(f"\n    {escape(one.path)}: {one.why}" for one in bad[:SHOWN])
        more = f"\n    and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
        total = sum(split.count for split in source.splits.values())
        raise DataError(
            f"{len(bad):,} of {total:,} pictures cannot be read:{shown}{more}",
            "mend or remove them, or leave them out with --on-error skip",
        )
    if not result.splits["train"]["count"]:
        raise DataError("no training picture can be read", "look at the folder you named")
    for name in [name for name, entry in result.splits.items() if not entry["count"]]:
        del result.splits[name]


def _seal(path: Path) -> dict[str, Any]:
    """Make sure a file is on disk; return its size and checksum for the manifest."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"size": path.stat().st_size, "sha256": manifest.digest(path)}


def _write_manifest(folder: Path, source: Source, options: Options, result: _Result) -> None:
    measured = result.moments.mean_and_std()
    content = {
        "kind": manifest.KIND,
        "version": manifest.VERSION,
        "name": source.name,
        "terms": source.terms,
        "classes": len(source.class_names),
        "class_names": source.class_names,
        "mean": list(source.mean or measured[0]),
        "std": list(source.std or measured[1]),
        "resize": options.resize or source.resize,
        "quality": {
            name: options.target(source, source.splits[name]).quality for name in result.splits
        },
        "formats": list(options.chosen_formats()),
        "splits": result.splits,
        "skipped": [[escape(one.path), one.why] for one in [*source.skipped, *result.bad]],
        "files": {name: file.result() for name, file in sorted(result.files.items())},
    }
    path = folder / manifest.NAME
    path.write_bytes(manifest.render(content))
    _seal(path)
