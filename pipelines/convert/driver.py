"""The conversion of a source into a store: one pass over the images, every format at once."""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from pipelines.convert.destination import building
from pipelines.convert.ffcv import BetonWriter
from pipelines.convert.images import LEVELS, mean_and_std
from pipelines.convert.options import Options
from pipelines.convert.pool import Pool
from pipelines.convert.tar import TarWriter
from pipelines.convert.worker import Prepared, prepare_all
from pipelines.cpus import available_cpus
from pipelines.errors import DataError
from pipelines.files import sync
from pipelines.sources import Chunk, Skipped, Source
from pipelines.store import index, manifest
from pipelines.store.index import escape
from pipelines.text import for_terminal

THREADS = 3  # a .beton, a checksum and a sync; the tar is written by our own thread
SHOWN = 10  # bad images listed by name


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
    _check_source(source)
    with building(out, wait=wait) as folder, ExitStack() as stack:
        if folder is None:
            return
        pool = stack.enter_context(Pool(_workers(source, options)))
        threads = stack.enter_context(ThreadPoolExecutor(THREADS))
        rows = stack.enter_context((folder / index.NAME).open("w", encoding="utf-8", newline=""))
        rows.write(",".join(index.HEADER) + "\n")
        work = _Conversion(source, options, folder, threads, rows, advance)
        for name, split in source.splits.items():
            target = options.target(source, split)
            unchanged = split.kept and target.quality is None and target.size == split.size
            prepared = prepare_all if unchanged else pool.map
            work.write_split(name, prepared(split.chunks(), target))
        _check_bad(work)
        rows.close()
        work.seal(index.NAME)
        work.write_manifest()


def _check_source(source: Source) -> None:
    """Refuse a source without images, or with more than a store can name."""
    if not source.splits.get("train") or not source.splits["train"].count:
        raise DataError(f"{source.name} has no training images", "look at the folder you named")
    twice = [name for name, count in Counter(source.class_names).items() if count > 1]
    if twice:
        raise DataError(f"two classes have the name {for_terminal(twice[0])!r}", "rename one")
    if len(source.class_names) > index.MOST_CLASSES:
        raise DataError(f"more than {index.MOST_CLASSES:,} classes", "join some of them")
    if max(split.count for split in source.splits.values()) > index.MOST_IMAGES:
        raise DataError(f"more than {index.MOST_IMAGES:,} images in a split", "convert a part")


def _workers(source: Source, options: Options) -> int:
    chunks = max(split.count for split in source.splits.values()) // 32 + 1
    return min(options.workers or available_cpus(), chunks)


@dataclass
class _Conversion:
    """A conversion, and what the manifest will record about the images written so far."""

    source: Source
    options: Options
    folder: Path
    threads: Executor
    rows: IO[str]  # index.csv
    advance: Callable[[int], None]
    splits: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Future[Any]] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)
    levels: Any = field(default_factory=lambda: np.zeros(LEVELS, np.int64))

    def write_split(self, name: str, chunks: Iterable[tuple[Chunk, Prepared]]) -> None:
        """Write every chunk in every format; after the first bad image, only look for more."""
        split = self.source.splits[name]
        target = self.options.target(self.source, split)
        about = (self.folder, name, target.encoding, (target.size, target.size))
        formats, stop = self.options.formats, self.options.on_error == "stop"
        tar = TarWriter(*about, self.threads) if "dali" in formats else None
        beton = BetonWriter(*about, split.count) if "ffcv" in formats else None
        records = np.zeros(split.count, index.RECORD)
        count, shards = 0, []
        with ExitStack() as stack:
            for writer in (tar, beton):
                if writer is not None:
                    stack.callback(writer.abandon)
            for chunk, prepared in chunks:
                self.bad.extend(prepared.bad)
                self.advance(len(chunk.labels))
                if not prepared.kept or (self.bad and stop):
                    continue
                self.levels += prepared.levels
                labels = np.asarray(chunk.labels, np.int64)[prepared.kept]
                part = records[count : count + len(labels)]
                self._write_images(prepared.images, labels, count, part, tar, beton)
                paths = [chunk.paths[index] for index in prepared.kept]
                self.rows.write(index.rows(name, count, labels.tolist(), paths))
                count += len(labels)
            if count:
                shards = self._close(name, tar, beton, records[:count])
        self.splits[name] = {
            "count": count,
            "labeled": int((records["label"][:count] >= 0).sum()),
            "height": target.size,
            "width": target.size,
            "encoding": target.encoding,
            "shards": shards,
        }

    def _write_images(
        self,
        images: Any,
        labels: Any,
        first: int,
        records: Any,
        tar: TarWriter | None,
        beton: BetonWriter | None,
    ) -> None:
        """Write images in both formats at once and fill their index records."""
        offsets = self.threads.submit(beton.add, images, labels, first) if beton else None
        if tar is not None:
            records["shard"], records["offset"] = tar.add(images, labels, first)
        records["label"] = labels
        records["size"] = [memoryview(image).nbytes for image in images]
        records["crc"] = [zlib.crc32(image) for image in images]
        if offsets is not None:
            records["beton"] = offsets.result()

    def _close(
        self, name: str, tar: TarWriter | None, beton: BetonWriter | None, records: Any
    ) -> list[str]:
        """Finish the files of a split; return the names of its shards."""
        digests = tar.close() if tar is not None else {}
        for shard, digest in digests.items():
            self.seal(shard, digest)
            self.seal(f"{Path(shard).stem}.idx")
        if beton is not None:
            self.seal(beton.close())
        np.save(self.folder / f"{name}.npy", records)
        self.seal(f"{name}.npy")
        return list(digests)

    def seal(self, file: str, digest: str | None = None) -> None:
        """Let a thread sync a file and compute the checksum for the manifest if it is not given."""
        self.files[file] = self.threads.submit(_seal, self.folder / file, digest)

    def write_manifest(self) -> None:
        """Write what makes the folder a store."""
        source, options = self.source, self.options
        mean, std = mean_and_std(self.levels)
        content = {
            "kind": manifest.KIND,
            "version": manifest.VERSION,
            "name": source.name,
            "terms": source.terms,
            "classes": len(source.class_names),
            "class_names": source.class_names,
            "mean": list(source.mean or mean),
            "std": list(source.std or std),
            "resize": options.resize or source.resize,
            "quality": {
                name: options.target(source, source.splits[name]).quality for name in self.splits
            },
            "formats": list(options.formats),
            "splits": self.splits,
            "skipped": [[escape(one.path), one.why] for one in [*source.skipped, *self.bad]],
            "files": {name: file.result() for name, file in sorted(self.files.items())},
        }
        if source.pseudo_labels:
            content["pseudo_labels"] = source.pseudo_labels
        if options.interpolation != "bicubic":  # else the bytes are those of earlier versions
            content["interpolation"] = options.interpolation
        path = self.folder / manifest.NAME
        path.write_bytes(manifest.render(content))
        sync(path)


def _seal(path: Path, digest: str | None) -> dict[str, Any]:
    sync(path)
    return {"size": path.stat().st_size, "sha256": digest or manifest.digest(path)}


def _check_bad(work: _Conversion) -> None:
    """Raise if images are bad and --on-error is not skip; forget splits without an image."""
    bad = work.bad
    if bad and work.options.on_error == "stop":
        shown = "".join(
            f"\n    {for_terminal(one.path)}: {for_terminal(one.why)}" for one in bad[:SHOWN]
        )
        more = f"\n    and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
        total = sum(split.count for split in work.source.splits.values())
        raise DataError(
            f"{len(bad):,} of {total:,} images cannot be read:{shown}{more}",
            "repair or remove them, or leave them out with --on-error skip",
        )
    if not work.splits["train"]["count"]:
        raise DataError("no training image can be read", "look at the folder you named")
    work.splits = {name: entry for name, entry in work.splits.items() if entry["count"]}
