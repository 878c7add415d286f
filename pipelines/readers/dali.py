"""The `dali` reader: bytes by index from memory-mapped tar shards, decoded by DALI.

DALI's own readers have an order of their own; `external_source` takes ours. On a CPU the fast
inverse DCT is asked for, which is what FFCV uses: both readers then give the same bytes.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.backend import TensorListCPU
from nvidia.dali.pipeline import Pipeline
from PIL import Image

from pipelines.errors import DataError
from pipelines.readers import Indices, Pixels, Reader, damaged_image

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.store import Store

AHEAD = 2  # batches DALI works on before they are asked for


class DaliReader(Reader):
    """Streams tar shards, decoded by DALI: nvJPEG on a GPU, the CPU without one."""

    def __init__(self, store: Store, split: str, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(store, split, threads=threads, device=device)
        self.paths = store.shards(split)
        self._maps = [np.memmap(path, dtype=np.uint8, mode="r") for path in self.paths]
        self._where = store.locations(split)
        self.raw = store.splits[split].encoding == "raw"

    def stream(self, plan: Iterable[Indices]) -> Iterator[Pixels | Tensor]:
        """Yield the images of every entry of the plan, decoded `AHEAD` of the asking."""
        for size, same in itertools.groupby(plan, len):
            if size:
                yield from self._run(size, same)
            else:
                yield from (np.empty((0, *self.shape), dtype=np.uint8) for _ in same)

    def _run(self, size: int, plan: Iterator[Indices]) -> Iterator[Pixels | Tensor]:
        fed: deque[Indices] = deque()
        pipeline = self._pipeline(size, self._feed(plan, fed))
        while True:
            try:
                (images,) = pipeline.run()
            except StopIteration:
                return
            except RuntimeError as error:
                raise self._blame(fed, error) from error
            fed.popleft()
            yield self._dense(images)

    def _feed(self, plan: Iterator[Indices], fed: deque[Indices]) -> Iterator[list[Pixels]]:
        """Give DALI the stored bytes, batch by batch, and remember which images they are."""
        for indices in plan:
            fed.append(indices)
            yield self._stored(indices)

    def _stored(self, indices: Indices) -> list[Pixels]:
        """Return the stored bytes of images as they lie in the shards, without a copy."""
        shards = self._where.shard[indices].tolist()
        starts = self._where.offset[indices].tolist()
        sizes = self._where.size[indices].tolist()
        stored = [
            self._maps[shard][start : start + size]
            for shard, start, size in zip(shards, starts, sizes, strict=True)
        ]
        return [data.reshape(self.shape) for data in stored] if self.raw else stored

    def _pipeline(self, size: int, source: Iterator[list[Pixels]]) -> Any:
        gpu = None if self.device == "cpu" or self.raw else int(self.device.partition(":")[2] or 0)
        pipeline = Pipeline(
            batch_size=size,
            num_threads=self.threads,
            device_id=gpu,
            prefetch_queue_depth=AHEAD,
        )
        with pipeline:
            layout = {"layout": "HWC", "ndim": 3} if self.raw else {"ndim": 1}
            images = fn.external_source(source=source, batch=True, dtype=types.UINT8, **layout)
            if not self.raw:
                images = fn.decoders.image(
                    images,
                    device="cpu" if gpu is None else "mixed",
                    output_type=types.RGB,
                    use_fast_idct=True,
                )
            pipeline.set_outputs(images)
        pipeline.build()
        return pipeline

    def _dense(self, images: Any) -> Pixels | Tensor:
        """Look at DALI's output as one array, without a copy."""
        if not images.is_dense_tensor() or tuple(images.as_tensor().shape()[1:]) != self.shape:
            raise DataError(
                f"the images of {self.store.path} do not all have the size {self.shape[:2]}",
                "convert the data set again",
            )
        if isinstance(images, TensorListCPU):
            return np.asarray(images.as_tensor())
        import torch.utils.dlpack

        return torch.utils.dlpack.from_dlpack(images.as_tensor())

    def _blame(self, fed: Iterable[Indices], error: RuntimeError) -> DataError:
        """Find the image that DALI could not decode."""
        for index in itertools.chain.from_iterable(batch.tolist() for batch in fed):
            try:
                with Image.open(io.BytesIO(self.store.encoded(self.split, index))) as picture:
                    picture.load()
            except OSError:
                path = self.paths[int(self._where.shard[index])]
                return damaged_image(path, self.split, index)
        reason = str(error).strip().splitlines()
        return DataError(
            f"DALI cannot read {self.store.path}: {reason[0] if reason else error!r}",
            "check it with `fastssl verify`, or take another reader",
        )
