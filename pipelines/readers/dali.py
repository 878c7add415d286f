"""The `dali` reader: memory-mapped tar shards, decoded by DALI.

DALI's own readers choose their own order; `external_source` takes ours. On a CPU the fast inverse
DCT is used, as FFCV does, so that both readers return the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.backend import TensorListCPU
from nvidia.dali.pipeline import Pipeline

from pipelines.errors import DataError
from pipelines.readers.base import Reader, copy_raw
from pipelines.store.records import FIX, Indices, Pixels

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store.store import Store

AHEAD = 2  # batches that DALI decodes before they are requested


class DaliReader(Reader):
    """Streams tar shards, decoded by DALI: nvJPEG on a GPU, the CPU without one."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        self._stored = store.stored(split, "dali")
        self.raw = store.splits[split].encoding == "raw"

    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels | Tensor]:
        """Yield the images of every entry of the plan, decoded up to `AHEAD` entries early."""
        if self.raw:  # nothing to decode: a copy needs no DALI
            yield from self.stream_reads(plan)
            return
        for size, same in itertools.groupby(plan, len):  # a DALI pipeline has one batch size
            if size:
                yield from self._run(size, same)
            else:
                yield from (np.empty((0, *self.shape), dtype=np.uint8) for _ in same)

    def read(self, indices: Indices, out: Pixels) -> None:
        """Fill `out` [n, H, W, 3] with the images of the indices."""
        if self.raw:
            copy_raw(self._stored, indices, out)
        else:
            super().read(indices, out)

    def _run(self, size: int, plan: Iterator[Indices]) -> Iterator[Pixels | Tensor]:
        pipeline = self._pipeline(size, map(self._stored.get, plan))
        while True:
            try:
                (images,) = pipeline.run()
            except StopIteration:
                return
            except RuntimeError as error:
                # DALI has no class for it: other errors are those of memory and of the device.
                if "decoders.image" not in str(error) or "memory" in str(error):
                    raise
                raise DataError(
                    f"DALI cannot decode an image of {self.store.path}",
                    f"type fastssl verify {self.store.path} to see which; then {FIX}",
                ) from error
            yield self._dense(images)

    def _pipeline(self, size: int, source: Iterator[list[Pixels]]) -> Any:
        gpu = None if self.device == "cpu" else int(self.device.partition(":")[2] or 0)
        pipeline = Pipeline(
            batch_size=size,
            num_threads=self.threads,
            device_id=gpu,
            prefetch_queue_depth=AHEAD,
        )
        with pipeline:
            # no_copy: DALI reads the JPEG bytes from the mapped file itself.
            stored = fn.external_source(
                source=source, batch=True, dtype=types.UINT8, ndim=1, no_copy=True
            )
            images = fn.decoders.image(
                stored,
                device="cpu" if gpu is None else "mixed",
                output_type=types.RGB,
                use_fast_idct=True,
            )
            pipeline.set_outputs(images)
        pipeline.build()
        return pipeline

    def _dense(self, images: Any) -> Pixels | Tensor:
        """Return DALI's output as one array, without a copy."""
        if not images.is_dense_tensor() or tuple(images.as_tensor().shape()[1:]) != self.shape:
            raise DataError(
                f"the images of {self.store.path} do not all have the size {self.shape[:2]}", FIX
            )
        if isinstance(images, TensorListCPU):
            return np.asarray(images.as_tensor())
        import torch.utils.dlpack

        return torch.utils.dlpack.from_dlpack(images.as_tensor())
