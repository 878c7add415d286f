"""The `ffcv` reader: streams a .beton file with FFCV's own decoder, in our order.

FFCV's `Loader(order=…)` accepts no custom order, but its `EpochIterator` accepts any list of
indices, repeats included, so a stream can start at any step.
"""

from __future__ import annotations

import itertools
import queue
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from pipelines.errors import DataError
from pipelines.ffcv_compat import import_ffcv
from pipelines.readers.base import Reader
from pipelines.store.records import FIX, Indices, Pixels, Stored

import_ffcv()

from ffcv.fields.rgb_image import SimpleRGBImageDecoder  # noqa: E402
from ffcv.loader import Loader  # noqa: E402
from ffcv.loader import loader as machinery  # noqa: E402
from ffcv.loader.epoch_iterator import EpochIterator  # noqa: E402
from ffcv.memory_managers.os_cache import OSCacheContext, OSCacheManager  # noqa: E402

if TYPE_CHECKING:
    from pipelines.store.store import Store

AHEAD = 1  # batches decoded before they are requested
SEGMENT = 128  # batches of one EpochIterator, which needs all of its indices at the start


class Segment(EpochIterator):  # type: ignore[misc]
    """FFCV's iterator over one list of indices; it passes failures of its thread on."""

    failure: BaseException | None = None

    def __init__(self, loader: Any, order: Any, stored: Stored) -> None:
        self.stored = stored
        super().__init__(loader, order)  # starts the thread

    def run_pipeline(self, *arguments: Any) -> Any:
        """Decode one batch, after a check that the mapped file was not truncated."""
        self.stored.whole()
        return super().run_pipeline(*arguments)

    def run(self) -> None:
        """Decode in the background; a failure ends the stream instead of blocking its consumer."""
        try:
            super().run()
        except BaseException as error:
            self.failure = error
            self.output_queue.put(None)

    def next_batch(self) -> Pixels:
        """Return the next batch."""
        try:
            (images,) = next(self)
        except StopIteration:
            raise self.failure or EOFError("FFCV ended early") from None
        return np.asarray(images)

    def stop(self) -> None:
        """End the thread, also while it waits to hand over a batch that is no longer needed."""
        self.close()
        while self.is_alive():
            try:
                self.output_queue.get(timeout=0.01)
            except queue.Empty:
                continue


class Memory(OSCacheManager):  # type: ignore[misc]
    """FFCV's memory manager without its dicts of sets, which take hundreds of bytes per image.

    They are built for other memory managers and never read by this one. The remaining tables take
    29 bytes per image.
    """

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        order = np.argsort(reader.alloc_table["ptr"])
        self.ptrs = reader.alloc_table["ptr"][order]
        self.sizes = reader.alloc_table["size"][order]
        self.context = OSCacheContext(self)


@contextmanager
def small_tables() -> Iterator[None]:
    """Let an FFCV Loader that is opened in this context use `Memory`.

    The class is hard-coded in FFCV's module, so it is replaced there for the time of the opening,
    by one thread at a time.
    """
    with _opening:
        machinery.OSCacheManager = Memory
        try:
            yield
        finally:
            machinery.OSCacheManager = OSCacheManager


_opening = threading.Lock()


def drop_unused_tables(loader: Any) -> None:
    """Free FFCV's own order, its allocation table, and the fields other than the images."""
    loader.indices = loader.first_traversal_order = np.empty(0, dtype=np.uint64)
    loader.traversal_order.indices = loader.indices
    loader.reader.alloc_table = None
    field = loader.reader.metadata["f0"]
    images = np.empty(len(field), dtype=[("f0", field.dtype)])
    images["f0"] = field
    images.setflags(write=False)
    loader.reader.metadata = loader.graph.metadata = images
    loader.pipeline_specs["image"].decoder.metadata = images["f0"]


class FfcvReader(Reader):
    """Streams a .beton file, decoded by FFCV on the CPU."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        self.path = store.beton(split)
        self._stored = Stored(store, split, "ffcv")
        self._lock = threading.Lock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's performance warnings about ffcv's code
            self._loader = self._open(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))
            for _ in self.stream([np.zeros(1, dtype=np.int64)]):
                pass  # FFCV compiles its pipeline here and not at the first step

    def _open(self, threads: int) -> Any:
        others = {"label": None, "index": None}
        try:
            with small_tables():
                loader = Loader(
                    str(self.path),
                    batch_size=1,
                    num_workers=threads,
                    os_cache=True,
                    batches_ahead=AHEAD,
                    pipelines={"image": [SimpleRGBImageDecoder()], **others},
                )
        except (OSError, ValueError, AssertionError, TypeError, LookupError) as error:
            raise self._unreadable(str(error)) from error
        field, memory = loader.reader.metadata["f0"], loader.memory_manager
        rows = np.searchsorted(memory.ptrs, field["data_ptr"]).clip(max=len(memory.ptrs) - 1)
        records = self.store.records(self.split)
        # FFCV's compiled code reads at these offsets without a check: a wrong one would crash.
        if (
            len(field) != len(records)
            or (field["data_ptr"] != records["beton"]).any()
            or (memory.ptrs[rows] != records["beton"]).any()
            or (memory.sizes[rows] != records["size"]).any()
            or {*field["height"].tolist()} != {self.shape[0]}
            or {*field["width"].tolist()} != {self.shape[1]}
        ):
            raise self._unreadable("its table of images disagrees with the store's")
        drop_unused_tables(loader)
        return loader

    def _unreadable(self, why: str) -> DataError:
        return DataError(f"{self.path} is damaged: {why}", FIX)

    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels]:
        """Yield the images of every entry of the plan while the next one is decoded."""
        for _, same in itertools.groupby(plan, len):  # an EpochIterator has one batch size
            while part := list(itertools.islice(same, SEGMENT)):
                yield from self._segment(part)

    def _segment(self, batches: list[Indices]) -> Iterator[Pixels]:
        if not len(batches[0]):
            yield from (np.empty((0, *self.shape), dtype=np.uint8) for _ in batches)
            return
        with self._lock:  # batch_size belongs to the loader, which an evaluation may use as well
            self._loader.batch_size = len(batches[0])
            order = np.concatenate(batches).astype(np.uint64)
            segment = Segment(self._loader, order, self._stored)
        try:
            for indices in batches:
                images = segment.next_batch()
                self._stored.check(indices)
                yield images
        finally:
            segment.stop()
