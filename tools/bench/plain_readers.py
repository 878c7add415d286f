"""Plain FFCV and plain DALI, which decode the files of a store with their own readers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fastssl.profiling.measure import rate
from pipelines.extras import import_ffcv
from pipelines.store.store import Store


def plain_ffcv(store: Store, threads: int, batch: int, batches: int) -> Callable[[], float]:
    """Return a case with FFCV's loader in random order."""
    import_ffcv()
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption

    count = store.splits["train"].count
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = Loader(
            str(store.beton("train")),
            batch_size=batch,
            num_workers=threads,
            os_cache=True,
            order=OrderOption.RANDOM,
            indices=np.arange(batch * batches) % count,
            pipelines={"image": [SimpleRGBImageDecoder()], "label": None, "index": None},
        )
        for _ in loader:  # compiles
            pass
    return lambda: rate(lambda: sum(len(images) for (images,) in loader))


def plain_dali(store: Store, threads: int, batch: int, batches: int) -> Callable[[], float]:
    """Return a case with DALI's own reader of tar shards and its shuffling."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    def build() -> Any:
        pipeline = Pipeline(batch_size=batch, num_threads=threads, device_id=None)
        shards = [str(path) for path in store.shards("train")]
        with pipeline:
            stored = fn.readers.webdataset(
                paths=shards,
                index_paths=[str(path.with_suffix(".idx")) for path in store.shards("train")],
                ext=["jpg"],
                random_shuffle=True,
                initial_fill=4 * batch,
            )
            pipeline.set_outputs(
                fn.decoders.image(stored, device="cpu", output_type=types.RGB, use_fast_idct=True)
            )
        pipeline.build()
        return pipeline

    def images() -> int:
        pipeline = build()
        return sum(len(pipeline.run()[0]) for _ in range(batches))

    return lambda: rate(images)
