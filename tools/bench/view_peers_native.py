"""The peers with native engines: DALI and FFCV."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastssl.profiling.views import Work
from pipelines.errors import ResourceError
from pipelines.extras import import_ffcv

Array = np.ndarray[Any, Any]
FILL = (125, 123, 114)


class Dali:
    """DALI on the CPU: its own RandAugment of three ops, an erasure, flip, shift, normalize."""

    def __init__(self, work: Work, threads: int) -> None:
        try:
            from nvidia.dali import pipeline_def
        except ImportError:
            raise _missing("DALI", "dali") from None
        self._work = work
        self._count = min(len(work.images), 16 * work.batch)
        define = pipeline_def(
            batch_size=work.batch, num_threads=threads, device_id=None, enable_conditionals=True
        )(_dali_views)
        with warnings.catch_warnings(record=True, action="ignore"):  # of deprecated names
            self._pipeline = define(work, self._batches)
            self._pipeline.build()

    def _batches(self) -> Iterator[list[Array]]:
        step = self._work.batch
        for start in range(0, self._count, step):
            yield list(self._work.images[start : start + step])

    def epoch(self) -> int:
        """Run the pipeline until its source ends."""
        made = 0
        while True:
            try:
                weak, strong = self._pipeline.run()
            except StopIteration:
                self._pipeline.reset()
                return made
            made += np.asarray(weak.as_array()).shape[0] + np.asarray(strong.as_array()).shape[0]

    def close(self) -> None:
        """Delete the pipeline; its threads end with it."""
        del self._pipeline


def _dali_views(work: Work, source: Any) -> tuple[Any, Any]:
    from nvidia.dali import fn, types
    from nvidia.dali.auto_aug import rand_augment

    images = fn.external_source(source=source, layout="HWC", cycle="raise", batch=True)
    strong = rand_augment.rand_augment(images, n=3, m=15, fill_value=0)
    side = fn.random.uniform(range=(0.0, 0.5))
    strong = fn.erase(
        strong,
        anchor=fn.random.uniform(range=(0.0, 0.75), shape=2),
        shape=fn.stack(side, side),
        axis_names="HW",
        normalized=True,
        fill_value=FILL,
    )

    def end(view: Any) -> Any:
        return fn.crop_mirror_normalize(
            view,
            crop=(work.size + 0.0, work.size + 0.0),
            crop_pos_x=fn.random.uniform(range=(0.0, 1.0)),
            crop_pos_y=fn.random.uniform(range=(0.0, 1.0)),
            mirror=fn.random.coin_flip(),
            mean=[255 * m for m in work.mean],
            std=[255 * s for s in work.std],
            dtype=types.FLOAT,
            output_layout="CHW",
            out_of_bounds_policy="pad",
        )

    return end(images), end(strong)


class Ffcv:
    """FFCV from a `.beton` of the same images: flip, shift and Cutout; it has no RandAugment."""

    def __init__(self, work: Work, threads: int) -> None:
        try:
            import_ffcv()
        except ImportError:
            raise _missing("FFCV", "ffcv") from None
        from ffcv.loader import Loader, OrderOption
        from ffcv.pipeline import PipelineSpec

        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "images.beton"
        _write_beton(file, work)
        self._loader = Loader(
            str(file),
            batch_size=work.batch,
            num_workers=threads,
            os_cache=True,
            order=OrderOption.RANDOM,
            drop_last=False,
            pipelines={
                "image": _ffcv_transforms(work, cutout=False),
                "strong": PipelineSpec("image", None, _ffcv_transforms(work, cutout=True)),
            },
        )

    def epoch(self) -> int:
        """Take every batch."""
        return sum(len(weak) + len(strong) for weak, strong in self._loader)

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()


def _write_beton(file: Path, work: Work) -> None:
    from ffcv.fields import RGBImageField
    from ffcv.writer import DatasetWriter

    class Images:
        def __len__(self) -> int:
            return len(work.images)

        def __getitem__(self, index: int) -> tuple[Array]:
            # FFCV cannot crop without resizing, so it gets images of the size of the view.
            return (np.ascontiguousarray(work.images[index, : work.size, : work.size]),)

    writer = DatasetWriter(str(file), {"image": RGBImageField(write_mode="raw")}, num_workers=1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # its progress bar
        writer.from_indexed_dataset(Images())


def _ffcv_transforms(work: Work, *, cutout: bool) -> list[Any]:
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.transforms import (
        Cutout,
        NormalizeImage,
        RandomHorizontalFlip,
        RandomTranslate,
        ToTensor,
        ToTorchImage,
    )

    scale = 255 * np.array([work.mean, work.std])
    return [
        SimpleRGBImageDecoder(),
        RandomHorizontalFlip(),
        RandomTranslate(padding=work.padding, fill=FILL),
        *([Cutout(work.size // 4, FILL)] if cutout else []),
        NormalizeImage(scale[0], scale[1], np.float32),
        ToTensor(),
        ToTorchImage(convert_back_int16=False),
    ]


def _missing(name: str, extra: str) -> ResourceError:
    return ResourceError(f"{name} is not installed", f'pip install "fastssl[{extra}]"')
