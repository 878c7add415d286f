"""The rate of the views: ours against what others would use, in the same run.

Batches of 448 images, one weak and one strong view each, as normalised float batches, from pixels
in memory (decoding is measured elsewhere). Ours draws, gathers and applies in its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fastssl.errors import ConfigError
from fastssl.profiling.measure import Measured, environment, interleave, rate
from fastssl.profiling.peers import PEERS, Peer, Work
from pipelines.views import apply, draw, recipes

Array = np.ndarray[Any, Any]
STORED = {32: 32, 96: 96, 224: 256}  # size of a view -> size of the stored image
BYTES = 96 << 20  # of images, at most: more than the caches hold
COPIED = 64 << 20  # bytes of one plain copy


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    size: int = 32
    """Pixels of a side of a view: 32, 96 or 224."""
    against: tuple[str, ...] = ("pil", "torchvision", "dali", "ffcv")
    """Peers, by name."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of threads (or worker processes) to measure with; ratios are of the largest."""
    batch: int = 448
    """Images of a batch."""
    repetitions: int = 5
    """Counted rounds; one more warms up."""
    seconds: float = 1.0
    """Least time of one repetition."""
    device: str = "cpu"
    """cpu or cuda; on cuda the kernel for devices is measured too, as `fastssl torch`."""


class Ours:
    """Draw, gather and apply, batch after batch."""

    def __init__(self, work: Work, threads: int) -> None:
        self._work, self._threads = work, threads
        made = recipes(flip=True, padding=work.padding, size=(work.size, work.size))
        self._recipes = list(made.values())
        shape = (work.batch, work.size, work.size, 3)
        self._out = [np.empty(shape, np.float32) for _ in self._recipes]
        self._images = np.empty((work.batch, *work.images.shape[1:]), np.uint8)
        self._order = np.random.default_rng(0).permutation(len(work.images))
        self._step = 0

    def drawn(self) -> list[Array]:
        """Draw the next batch."""
        self._step += 1
        slots, size = np.arange(self._work.batch), self._work.images.shape[1:3]
        where: dict[str, Any] = {"seed": 0, "step": self._step, "stream": 1, "slots": slots}
        return [
            draw(recipe, view=view, size=size, **where) for view, recipe in enumerate(self._recipes)
        ]

    def epoch(self) -> int:
        """Make the views of every image once."""
        work, made = self._work, 0
        for start in range(0, len(self._order) - work.batch + 1, work.batch):
            np.take(
                work.images, self._order[start : start + work.batch], axis=0, out=self._images,
                mode="clip",
            )  # fmt: skip
            apply(
                self._images,
                self.drawn(),
                self._recipes,
                mean=work.mean,
                std=work.std,
                out=self._out,
                threads=self._threads,
            )
            made += 2 * work.batch
        return made

    def close(self) -> None:
        """Have nothing to end."""


class OnDevice(Ours):
    """The same with the kernel for devices, where images and views lie in the device's memory."""

    def __init__(self, work: Work, device: str) -> None:
        import torch

        super().__init__(work, 1)
        self._device = torch.device(device)
        self._stored = torch.from_numpy(work.images).to(self._device)

    def epoch(self) -> int:
        """Make the views of every image once, and wait for them."""
        import torch

        from pipelines.views import kernel_torch

        work, made = self._work, 0
        for start in range(0, len(self._order) - work.batch + 1, work.batch):
            chosen = torch.from_numpy(self._order[start : start + work.batch]).to(self._device)
            drawn = [torch.from_numpy(rows).to(self._device) for rows in self.drawn()]
            views = kernel_torch.apply(
                self._stored[chosen], drawn, self._recipes, work.mean, work.std
            )
            made += sum(len(view) for view in views)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return made


def run(options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = _options({**(options or {}), **more})
    work = _work(asked)
    cases: dict[str, Peer] = {}
    try:
        for threads in asked.threads:
            for name in asked.against:
                cases[f"{name} {threads}"] = PEERS[name](work, threads)
            cases[f"fastssl {threads}"] = Ours(work, threads)
        if asked.device != "cpu":
            cases["fastssl torch 0"] = OnDevice(work, asked.device)
        timed = {name: _timed(peer, asked.seconds) for name, peer in cases.items()}
        measured = interleave(timed, asked.repetitions)
        share = draw_share(Ours(work, max(asked.threads)))
        copied = copy_rate(max(asked.threads))
    finally:
        for peer in cases.values():
            peer.close()
    return _record(asked, measured, share, copied)


def _timed(peer: Peer, seconds: float) -> Callable[[], float]:
    return lambda: rate(peer.epoch, seconds)


def draw_share(ours: Ours, batches: int = 30) -> float:
    """Return the time of drawing over the time of drawing and making, one after the other."""
    drawing, making = [], []
    ours.epoch()
    for _ in range(batches):
        started = time.perf_counter()
        ours.drawn()
        drawing.append(time.perf_counter() - started)
    for _ in range(3):
        started = time.perf_counter()
        views = ours.epoch()
        making.append((time.perf_counter() - started) / views)
    batch = 2 * ours._work.batch
    return float(np.median(drawing) / (np.median(making) * batch))


def copy_rate(threads: int, times: int = 8) -> float:
    """Return the bytes a second that so many threads read and write by plain copies."""
    pairs = [(np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)) for _ in range(threads)]
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(times):
            started = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), pairs))
            rates.append(2 * COPIED * threads / (time.perf_counter() - started))
    return float(np.median(rates))


def moved_bytes(size: int) -> float:
    """Return the bytes that one view reads and writes, its share of the gather included."""
    stored, view = 3 * STORED[size] ** 2, 3 * size**2
    return (3 * stored + 2 * 4 * view) / 2  # gathered, read once, written twice as float32


def _options(given: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise ConfigError(f"views have no option {name!r}", f"take: {', '.join(sorted(known))}")
    lists = {name: tuple(given[name]) for name in ("against", "threads") if name in given}
    asked = Options(**{**given, **lists})
    if asked.size not in STORED:
        raise ConfigError(f"views of {asked.size} pixels are not measured", "take 32, 96 or 224")
    if not asked.threads or min(asked.threads) < 1:
        raise ConfigError("views need a number of threads", "take threads=1,2")
    if asked.device != "cpu":
        from fastssl.engine.devices import choose_device

        choose_device(asked.device, 0)  # a GPU that is not there is told at once
    for name in asked.against:
        PEERS[name]  # an unknown one is told before anything is measured
    return asked


def _work(asked: Options) -> Work:
    """Make images whose neighbouring pixels are alike, as in photographs, and no two the same."""
    stored = STORED[asked.size]
    count = max(BYTES // (3 * stored * stored) // asked.batch, 2) * asked.batch
    rng = np.random.default_rng(0)
    tile = rng.integers(0, 256, (64, stored // 8, stored // 8, 3), dtype=np.uint8)
    tile = tile.repeat(8, axis=1).repeat(8, axis=2)
    images = tile[rng.integers(0, len(tile), count)]
    images += rng.integers(0, 16, (count, 1, stored, 3), dtype=np.uint8)
    return Work(images, asked.size, asked.batch, 4, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _record(
    asked: Options, measured: Mapping[str, Measured], share: float, copied: float
) -> dict[str, Any]:
    most = max(asked.threads)
    ours = measured[f"fastssl {most}"]
    moved = ours.median * moved_bytes(asked.size)
    ratio = {name: ours.median / measured[f"{name} {most}"].median for name in asked.against}
    if asked.device != "cpu":
        ratio["torch"] = measured["fastssl torch 0"].median / ours.median
    return {
        "what": f"views {asked.size}",
        "environment": environment(),
        "settings": {
            "size": asked.size,
            "batch": asked.batch,
            "repetitions": asked.repetitions,
            "device": asked.device,
        },
        "results": [
            {
                "name": name.rsplit(maxsplit=1)[0],
                "threads": int(name.rsplit(maxsplit=1)[1]),
                "rate": round(case.median, 1),
                "unit": "views/s",
                "spread": round(case.spread, 1),
                "cpu_us": round(1e6 * case.busy / case.median, 2),
            }
            for name, case in measured.items()
        ],
        "ratio": {name: round(value, 2) for name, value in ratio.items()},
        "draw_share": round(share, 4),
        "memory": {"moved": round(moved / 1e9, 2), "copy": round(copied / 1e9, 2), "unit": "GB/s"},
        "says": _bottleneck(asked, measured, share, moved / copied),
    }


def _bottleneck(
    asked: Options, measured: Mapping[str, Measured], share: float, memory: float
) -> str:
    """Say what bounds the rate; `memory` is what it moves over what plain copies would."""
    least, most = min(asked.threads), max(asked.threads)
    gain = measured[f"fastssl {most}"].median / measured[f"fastssl {least}"].median
    if share > 0.05:
        return f"Drawing takes {share:.0%} of the time, on one thread: take a larger batch."
    moves = f"it moves {memory:.0%} of the bytes a second that plain copies do"
    if memory > 0.5:
        return f"The kernel is bound by memory: {moves}; more loader_threads gain little."
    if most > least and gain <= 0.6 * most / least:
        return (
            f"{most} threads give only {gain:.1f} times the rate of {least}: the cores are shared "
            f"with other work, for memory is not the limit ({moves}); measure on an idle machine, "
            "or take fewer loader_threads."
        )
    return f"The kernel is bound by its arithmetic: {moves}; more loader_threads make it faster."
