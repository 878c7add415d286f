"""The rate of the views: one weak and one strong view of each image, as normalized float batches.

The images are in memory; `tools/bench/photos.py` measures decoding. Sampling the parameters,
gathering the images of a batch and applying the views are all part of the measured time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fastssl.engine.devices import choose_device
from fastssl.errors import ConfigError
from fastssl.profiling.measure import Case, Measured, interleave, make_record, rate
from fastssl.profiling.subjects import ViewsOptions
from pipelines.views import Recipe, apply, draw, recipes

Array = np.ndarray[Any, Any]
STORED = {32: 32, 96: 96, 224: 256}  # size of a view -> size of the stored image
BYTES = 96 << 20  # upper limit for all images together: more than the CPU caches hold
COPIED = 64 << 20  # bytes of one plain copy


@dataclass(frozen=True)
class Work:
    """The views to make: the same for our kernels and for the peers in `tools/bench`."""

    images: Array  # uint8 [n, H, W, 3]
    size: int
    batch: int
    padding: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def recipes(self) -> list[Recipe]:
        """Return the recipes of the weak and of the strong view."""
        made = recipes(flip=True, padding=self.padding, size=(self.size, self.size))
        return list(made.values())


class ViewMaker:
    """Samples, gathers and applies views, batch after batch, with the CPU kernel."""

    def __init__(self, work: Work, threads: int, views: Sequence[Recipe] | None = None) -> None:
        self.work, self._threads = work, threads
        self._recipes = list(views or work.recipes())
        shapes = [(work.batch, *recipe.size, 3) for recipe in self._recipes]
        self._out = [np.empty(shape, np.float32) for shape in shapes]
        self._images = np.empty((work.batch, *work.images.shape[1:]), np.uint8)
        self._order = np.random.default_rng(0).permutation(len(work.images))
        self._step = 0

    def sample(self) -> list[Array]:
        """Sample the parameters of the next batch."""
        self._step += 1
        slots, size = np.arange(self.work.batch), self.work.images.shape[1:3]
        key: dict[str, Any] = {"seed": 0, "step": self._step, "stream": 1, "slots": slots}
        return [
            draw(recipe, view=view, size=size, **key) for view, recipe in enumerate(self._recipes)
        ]

    def epoch(self) -> int:
        """Make the views of every image once; return the number of views."""
        batch = self.work.batch
        starts = range(0, len(self._order) - batch + 1, batch)
        for start in starts:
            self._apply(self._order[start : start + batch])
        return len(starts) * batch * len(self._recipes)

    def _apply(self, indices: Array) -> None:
        # mode="clip" lets np.take write into `out` without a buffered copy
        np.take(self.work.images, indices, axis=0, out=self._images, mode="clip")
        apply(
            self._images,
            self.sample(),
            self._recipes,
            mean=self.work.mean,
            std=self.work.std,
            out=self._out,
            threads=self._threads,
        )


class DeviceViewMaker(ViewMaker):
    """The same with the kernel for devices: images and views are in the device's memory."""

    def __init__(self, work: Work, device: str, views: Sequence[Recipe] | None = None) -> None:
        import torch

        super().__init__(work, 1, views)
        self._device = torch.device(device)
        self._stored = torch.from_numpy(work.images).to(self._device)

    def epoch(self) -> int:
        """Make the views of every image once and wait for the device."""
        import torch

        made = super().epoch()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return made

    def _apply(self, indices: Array) -> None:
        import torch

        from pipelines.views import kernel_torch

        chosen = torch.from_numpy(indices).to(self._device)
        sampled = [torch.from_numpy(rows).to(self._device) for rows in self.sample()]
        kernel_torch.apply(
            self._stored[chosen], sampled, self._recipes, self.work.mean, self.work.std
        )


def run(options: ViewsOptions) -> dict[str, Any]:
    """Measure our kernels; return the record."""
    work = make_work(options)
    return record(options, work, interleave(cases(options, work), options.repetitions))


def cases(options: ViewsOptions, work: Work) -> dict[str, Case]:
    """Return the cases, named by kernel and number of threads; each returns views per second."""
    makers: dict[str, ViewMaker] = {
        f"fastssl {threads}": ViewMaker(work, threads) for threads in options.threads
    }
    if options.device != "cpu":
        choose_device(options.device, 0)  # raises if there is no such GPU
        makers["fastssl torch 0"] = DeviceViewMaker(work, options.device)
    return {name: timed(maker, options.seconds) for name, maker in makers.items()}


def timed(maker: Any, seconds: float) -> Case:
    """Return a case that runs epochs for some seconds and returns views per second."""
    return lambda: rate(maker.epoch, seconds)


def make_work(options: ViewsOptions) -> Work:
    """Return different images whose neighboring pixels are similar, as in photos."""
    if options.size not in STORED:
        raise ConfigError(f"views of {options.size} pixels are not measured", "use 32, 96 or 224")
    stored = STORED[options.size]
    count = max(BYTES // (3 * stored * stored) // options.batch, 2) * options.batch
    rng = np.random.default_rng(0)
    tile = rng.integers(0, 256, (64, stored // 8, stored // 8, 3), dtype=np.uint8)
    tile = tile.repeat(8, axis=1).repeat(8, axis=2)
    images = tile[rng.integers(0, len(tile), count)]
    images += rng.integers(0, 16, (count, 1, stored, 3), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return Work(images, options.size, options.batch, 4, mean, std)


def sample_share(maker: ViewMaker, batches: int = 30) -> float:
    """Return the time of sampling over the time of sampling, gathering and applying."""
    maker.epoch()
    sampling = []
    for _ in range(batches):
        started = time.perf_counter()
        maker.sample()
        sampling.append(time.perf_counter() - started)
    making = [1 / rate(maker.epoch) for _ in range(3)]  # seconds per view
    return float(np.median(sampling) / (np.median(making) * 2 * maker.work.batch))


def copy_rate(threads: int, times: int = 8) -> float:
    """Return the bytes per second that plain copies in `threads` threads read and write."""
    pairs = [(np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)) for _ in range(threads)]

    def copy() -> int:
        list(pool.map(lambda pair: np.copyto(*pair), pairs))
        return 2 * COPIED * threads

    with ThreadPoolExecutor(threads) as pool:
        return float(np.median([rate(copy) for _ in range(times)]))


def moved_bytes(size: int) -> float:
    """Return the bytes that one view reads and writes, including its half of the gather."""
    stored, view = 3 * STORED[size] ** 2, 3 * size**2
    return (3 * stored + 2 * 4 * view) / 2  # gathered, read once, written twice as float32


def record(options: ViewsOptions, work: Work, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the record; cases are named "NAME THREADS"."""
    most = max(options.threads)
    ours = measured[f"fastssl {most}"]
    share, copied = sample_share(ViewMaker(work, most)), copy_rate(most)
    moved = ours.median * moved_bytes(options.size)
    ratio = {}
    if options.device != "cpu":
        ratio["torch"] = round(measured["fastssl torch 0"].median / ours.median, 2)
    results = []
    for case, values in measured.items():
        name, threads = case.rsplit(maxsplit=1)
        cpu_us = round(1e6 * values.busy / values.median, 2)
        results.append(values.row(name, "views/s", threads=int(threads), cpu_us=cpu_us))
    settings = asdict(options)
    return make_record(
        f"views {options.size}",
        {key: settings[key] for key in ("size", "batch", "repetitions", "device")},
        results,
        ratio,
        draw_share=round(share, 4),
        memory={"moved": round(moved / 1e9, 2), "copy": round(copied / 1e9, 2), "unit": "GB/s"},
        says=bottleneck(options, measured, share, moved / copied),
    )


def bottleneck(
    options: ViewsOptions, measured: Mapping[str, Measured], share: float, memory: float
) -> str:
    """Return a sentence on what bounds the rate; `memory` is bytes moved over bytes copied."""
    least, most = min(options.threads), max(options.threads)
    gain = measured[f"fastssl {most}"].median / measured[f"fastssl {least}"].median
    if share > 0.05:
        return f"Sampling takes {share:.0%} of the time, on one thread: use a larger batch."
    moves = f"it moves {memory:.0%} of the bytes per second that plain copies do"
    if memory > 0.5:
        return f"The kernel is bound by memory: {moves}; more loader_threads gain little."
    if most > least and gain <= 0.6 * most / least:
        return (
            f"{most} threads give only {gain:.1f} times the rate of {least}: the cores are shared "
            f"with other work, because memory is not the limit ({moves}); measure on an idle "
            "machine, or use fewer loader_threads."
        )
    return f"The kernel is bound by its arithmetic: {moves}; more loader_threads make it faster."
