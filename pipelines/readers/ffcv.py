"""The `ffcv` reader: streams a .beton file, decoded by FFCV's own JPEG decoder, in our order.

FFCV's `Loader` is not used. It accepts no custom order, its compiled code reads wherever the
tables in the .beton file point, and it ignores what its decoder returns. Here offsets and sizes
come from the store's own index, and an image that FFCV cannot decode is an error.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from pipelines.extras import import_ffcv
from pipelines.prefetch import Ring
from pipelines.readers.base import Reader
from pipelines.store.records import Indices, Pixels

import_ffcv()

from ffcv.libffcv import imdecode  # noqa: E402

if TYPE_CHECKING:
    from pipelines.store.store import Store

AHEAD = 1  # batches decoded before they are requested

imdecode = numba.njit(imdecode)


@numba.njit(parallel=True, nogil=True)
def fill(
    out: Pixels, file: Pixels, starts: Indices, sizes: Indices, raw: bool, failed: Any
) -> None:
    """Fill `out` [n, H, W, 3] with the images at these positions of a mapped file."""
    _, height, width, _ = out.shape
    for i in numba.prange(len(out)):
        stored = file[starts[i] : starts[i] + sizes[i]]
        if raw:
            out[i] = stored.reshape(height, width, 3)
        else:
            crop = (height, width, 0, 0, 1, 1, False, False)  # all of it, unscaled, not flipped
            failed[i] = imdecode(stored, out[i], height, width, *crop)


class FfcvReader(Reader):
    """Streams a .beton file, decoded by FFCV on the CPU."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        self._stored = store.stored(split, "ffcv")
        self._raw = store.splits[split].encoding == "raw"
        self.read(np.zeros(1, dtype=np.int64), np.empty((1, *self.shape), np.uint8))  # compiles

    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels]:
        """Yield the images of every entry of the plan while the next one is decoded."""

        def produce(acquire: Callable[[], list[Pixels]]) -> Iterator[Pixels]:
            for indices in plan:
                buffer = acquire()
                if len(buffer[0]) != len(indices):
                    buffer[0] = np.empty((len(indices), *self.shape), np.uint8)
                self.read(indices, buffer[0])
                yield buffer[0]

        ring = Ring(produce, lambda: [np.empty((0, *self.shape), np.uint8)], ahead=AHEAD)
        try:
            yield from ring
        finally:
            ring.close()

    def read(self, indices: Indices, out: Pixels) -> None:
        """Fill `out` [n, H, W, 3] with the images of the indices."""
        numba.set_num_threads(max(1, min(self.threads, numba.config.NUMBA_NUM_THREADS)))
        failed = np.zeros(len(indices), np.int64)
        fill(out, *self._stored.locate(indices), self._raw, failed)
        for index in indices[failed != 0]:
            raise self._stored.damaged(index, "FFCV cannot decode it")
