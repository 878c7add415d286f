"""The conversion of a source into a store: one pass over the images, every format at once."""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.convert.destination import building
from pipelines.convert.ffcv import BetonWriter
from pipelines.convert.images import Moments, Target
from pipelines.convert.options import Options
from pipelines.convert.pool import Pool, cores
from pipelines.convert.tar import TarWriter
from pipelines.convert.worker import Prepared, prepare
from pipelines.errors import DataError
from pipelines.files import sync
from pipelines.sources import Chunk, Skipped, Source, SourceSplit
from pipelines.store import index, manifest
from pipelines.store.index import escape

THREADS = 3  # a .beton, a checksum and a sync; the tar is written by our own thread
SHOWN = 10  # bad images listed by name


@dataclass
class _Result:
    """What the manifest will record about the images written so far."""

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
    """Write `source` as a store at `out`, which is complete or absent even after a crash."""
    options = options or Options()
    check_source(source)
    with building(out, wait=wait) as folder, ExitStack() as stack:
        if folder is None:
            return
        result = _Result()
        pool = stack.enter_context(Pool(_workers(source, options)))
        if any(_is_work(split, options.target(source, split)) for split in source.splits.values()):
            pool.start()
        options.load()
        threads = stack.enter_context(ThreadPoolExecutor(THREADS))
        rows = stack.enter_context((folder / index.NAME).open("w", encoding="utf-8", newline=""))
        rows.write(",".join(index.HEADER) + "\n")
        for name, split in source.splits.items():
            target = options.target(source, split)
            task = _SplitTask(name, split, target, folder, options, threads)
            chunks = pool.map(split.chunks(), task.target) if task.parallel else task.alone()
            task.write(chunks, result, rows, advance)
            for file, digest in task.files.items():
                result.files[file] = threads.submit(_seal, folder / file, digest)
        _check_bad(source, result, options)
        rows.close()
        result.files[index.NAME] = threads.submit(_seal, folder / index.NAME)
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


def _is_work(split: SourceSplit, target: Target) -> bool:
    """Return True if images must be decoded, resized or encoded, False if stored unchanged."""
    return not split.kept or target.quality is not None or target.size != split.size


class _SplitTask:
    """The conversion of one split."""

    def __init__(
        self,
        name: str,
        split: SourceSplit,
        target: Target,
        folder: Path,
        options: Options,
        threads: Executor,
    ) -> None:
        self.name, self.split, self.target, self.folder = name, split, target, folder
        self.stop = options.on_error == "stop"
        self.formats = options.formats
        self.threads = threads
        self.files: dict[str, str | None] = {}  # name -> SHA-256, where it is known already
        self.parallel = _is_work(split, target)

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
        """Write every chunk in every format; after the first bad image, only look for more."""
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
                part = self._write_chunk(prepared.images, labels, count, tar, beton)
                paths = [chunk.paths[index] for index in prepared.kept]
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
            TarWriter(*arguments, self.threads) if "dali" in self.formats else None,
            BetonWriter(*arguments, self.split.count) if "ffcv" in self.formats else None,
        )

    def _write_chunk(
        self,
        images: Any,
        labels: Any,
        first: int,
        tar: TarWriter | None,
        beton: BetonWriter | None,
    ) -> Any:
        """Write images in both formats at once; return their index records."""
        offsets = self.threads.submit(beton.add, images, labels, first) if beton else None
        if tar is not None:
            records = tar.add(images, labels, first)
        else:
            records = np.zeros(len(labels), index.RECORD)
            records["label"] = labels
            records["size"] = [memoryview(image).nbytes for image in images]
        records["crc"] = [zlib.crc32(image) for image in images]
        if offsets is not None:
            records["beton"] = offsets.result()
        return records

    def _close(self, tar: TarWriter | None, beton: BetonWriter | None, records: Any) -> list[str]:
        shards = tar.close() if tar is not None else []
        self.files |= tar.digests if tar is not None else {}
        others = [f"{Path(shard).stem}.idx" for shard in shards] + [f"{self.name}.npy"]
        if beton is not None:
            others += beton.close()
        np.save(self.folder / f"{self.name}.npy", records)
        self.files |= dict.fromkeys(others)
        return shards


def _check_bad(source: Source, result: _Result, options: Options) -> None:
    """Raise if images are bad and --on-error is not skip."""
    bad = result.bad
    if bad and options.on_error == "stop":
        shown = "".join(f"\n    {escape(one.path)}: {one.why}" for one in bad[:SHOWN])
        more = f"\n    and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
        total = sum(split.count for split in source.splits.values())
        raise DataError(
            f"{len(bad):,} of {total:,} images cannot be read:{shown}{more}",
            "repair or remove them, or leave them out with --on-error skip",
        )
    if not result.splits["train"]["count"]:
        raise DataError("no training image can be read", "look at the folder you named")
    for name in [name for name, entry in result.splits.items() if not entry["count"]]:
        del result.splits[name]


def _seal(path: Path, digest: str | None = None) -> dict[str, Any]:
    """Sync a file to disk; return its size and checksum for the manifest."""
    sync(path)
    return {"size": path.stat().st_size, "sha256": digest or manifest.digest(path)}


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
        "formats": list(options.formats),
        "splits": result.splits,
        "skipped": [[escape(one.path), one.why] for one in [*source.skipped, *result.bad]],
        "files": {name: file.result() for name, file in sorted(result.files.items())},
    }
    path = folder / manifest.NAME
    path.write_bytes(manifest.render(content))
    _seal(path)
