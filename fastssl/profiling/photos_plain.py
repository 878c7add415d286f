"""Plain FFCV and plain DALI, each with a reader of its own, decoding the files of a store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pipelines.ffcv_compat import import_ffcv
from pipelines.store.store import Store


def timed(work: Callable[[], int]) -> float:
    """Do some work, which returns how much it was; return how much that is in a second."""
    started = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - started)


def plain_ffcv(store: Store, threads: int, batch: int, batches: int) -> Callable[[], float]:
    """FFCV's loader in a random order of its own."""
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
    return lambda: timed(lambda: sum(len(images) for (images,) in loader))


def plain_dali(store: Store, threads: int, batch: int, batches: int) -> Callable[[], float]:
    """DALI's own reader of tar shards, shuffling as it does."""
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

    return lambda: timed(images)
