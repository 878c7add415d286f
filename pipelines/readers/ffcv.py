"""The `ffcv` reader: streams a .beton file with FFCV's own machinery, in our order.

FFCV's `order=` takes no order from outside, but its `EpochIterator` takes any list of indices,
repeats included, so a stream starts at any step.
"""

from __future__ import annotations

import itertools
import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt

from pipelines.errors import DataError
from pipelines.importing import import_ffcv
from pipelines.readers import Indices, Pixels, Reader, damaged_image

import_ffcv()

from ffcv.fields.rgb_image import IMAGE_MODES, SimpleRGBImageDecoder  # noqa: E402
from ffcv.libffcv import imdecode, memcpy  # noqa: E402
from ffcv.loader import Loader  # noqa: E402
from ffcv.loader.epoch_iterator import EpochIterator  # noqa: E402
from ffcv.pipeline.allocation_query import AllocationQuery  # noqa: E402
from ffcv.pipeline.compiler import Compiler  # noqa: E402

if TYPE_CHECKING:
    from pipelines.store import Store

AHEAD = 1  # batches decoded before they are asked for
SEGMENT = 128  # batches handed to one EpochIterator


class CheckedDecoder(SimpleRGBImageDecoder):  # type: ignore[misc]
    """FFCV's decoder, which drops the JPEG library's verdict, with the verdict kept."""

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, Any]:
        """Ask for the images and, beside each, one byte: 0 if it was read whole."""
        state, images = super().declare_state_and_memory(previous_state)
        return state, (images, AllocationQuery((1,), np.dtype("<u1")))

    def generate_code(self) -> Callable[..., Any]:
        """Write the function that FFCV compiles."""
        mem_read = self.memory_read
        decode_jpeg, copy = Compiler.compile(imdecode), Compiler.compile(memcpy)
        jpeg = IMAGE_MODES["jpg"]
        each = Compiler.get_iterator()

        def decode(batch_indices, memory, metadata, storage_state):  # type: ignore[no-untyped-def]
            destination, damaged = memory
            for place in each(len(batch_indices)):
                field = metadata[batch_indices[place]]
                stored = mem_read(field["data_ptr"], storage_state)
                height, width = field["height"], field["width"]
                out = destination[place]
                if field["mode"] == jpeg:
                    verdict = decode_jpeg(
                        stored, out, height, width, height, width, 0, 0, 1, 1, False, False
                    )
                    damaged[place, 0] = verdict != 0
                elif stored.size == out.size:
                    copy(stored, out)
                    damaged[place, 0] = 0
                else:
                    damaged[place, 0] = 1
            return destination[: len(batch_indices)]

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class Segment(EpochIterator):  # type: ignore[misc]
    """FFCV's iterator over one list of indices, with failures and verdicts passed on."""

    failure: BaseException | None = None

    def run(self) -> None:
        """Decode in the background; a failure ends the stream instead of leaving it hanging."""
        try:
            super().run()
        except BaseException as error:
            self.failure = error
            self.output_queue.put(None)

    def take(self) -> tuple[Pixels, npt.NDArray[np.uint8]]:
        """Return the next batch, and a byte for each image: 0 if it was read whole."""
        item = self.output_queue.get()
        if item is None:
            raise self.failure or EOFError("FFCV ended early")
        slot, (images,) = item
        ((_, damaged),) = (m for m in self.memory_allocations["operation"].values() if m)
        return images, np.asarray(damaged[slot])[: len(images), 0]

    def stop(self) -> None:
        """End the thread, also where it waits to hand over a batch that nobody wants."""
        self.close()
        while self.is_alive():
            try:
                self.output_queue.get(timeout=0.01)
            except queue.Empty:
                continue


class FfcvReader(Reader):
    """Streams a .beton file, decoded by FFCV on the CPU."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        self.path = store.beton(split)
        self._lock = threading.Lock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's advice on ffcv's code
            self._loader = self._open(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))
            for _ in self.stream([np.zeros(1, dtype=np.int64)]):
                pass  # compiled here, and not at the first step

    def _open(self, threads: int) -> Any:
        others = {"label": None, "index": None}
        try:
            loader = Loader(
                str(self.path),
                batch_size=1,
                num_workers=threads,
                os_cache=True,
                batches_ahead=AHEAD,
                pipelines={"image": [CheckedDecoder()], **others},
            )
        except (OSError, ValueError, AssertionError, TypeError, LookupError) as error:
            raise self._unreadable(str(error)) from error
        info = self.store.splits[self.split]
        field, memory = loader.reader.metadata["f0"], loader.memory_manager
        place = np.searchsorted(memory.ptrs, field["data_ptr"]).clip(max=len(memory.ptrs) - 1)
        ends = field["data_ptr"] + memory.sizes[place]
        if (
            len(field) != info.count
            or (field["height"] != info.height).any()
            or (field["width"] != info.width).any()
            or (memory.ptrs[place] != field["data_ptr"]).any()
            or ends.max() > self.path.stat().st_size
        ):
            raise self._unreadable("its table of images disagrees with dataset.json")
        return loader

    def _unreadable(self, why: str) -> DataError:
        return DataError(f"cannot read {self.path}: {why}", "convert the data set again")

    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels]:
        """Yield the images of every entry of the plan; the next one is decoded meanwhile."""
        for _, same in itertools.groupby(plan, len):  # FFCV's batches have one size
            while part := list(itertools.islice(same, SEGMENT)):
                yield from self._segment(part)

    def _segment(self, batches: list[Indices]) -> Iterator[Pixels]:
        if not len(batches[0]):
            yield from (np.empty((0, *self.shape), dtype=np.uint8) for _ in batches)
            return
        with self._lock:  # an evaluation may start between two segments of the training
            self._loader.batch_size = len(batches[0])
            segment = Segment(self._loader, np.concatenate(batches).astype(np.uint64))
        try:
            for indices in batches:
                images, damaged = segment.take()
                if damaged.any():
                    raise damaged_image(self.path, self.split, int(indices[damaged.argmax()]))
                yield images
        finally:
            segment.stop()
