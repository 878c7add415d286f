"""The time of one curriculum update, compiled and eager.

It must not grow with the number of unlabeled images: the update is incremental.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastssl.algorithms import DatasetInfo
from fastssl.algorithms.common import cpl
from fastssl.distributed.collectives import Ranks
from fastssl.engine.devices import choose_device
from fastssl.profiling.measure import Case, Measured, interleave, make_record, rate
from fastssl.profiling.subjects import CplOptions
from pipelines.loader.batch import Batch

Decide = Callable[..., cpl.Decision]


class Work:
    """Logits, positions and state for one number of images; most have a pseudo-label already."""

    def __init__(self, options: CplOptions, images: int) -> None:
        source = torch.Generator().manual_seed(0)
        device = torch.device(options.device)
        self.config, self.ranks = cpl.CurriculumSettings(), Ranks()
        self.logits = [_logits(options, source).to(device) for _ in range(8)]
        self.positions = [
            torch.randint(images, (options.batch,), generator=source).to(device) for _ in range(256)
        ]
        self.batches = [_batch(positions) for positions in self.positions]
        shares = torch.full((options.classes,), 1 / options.classes, device=device)
        info = DatasetInfo(options.classes, images, shares, device)
        self.state = cpl.init_state(self.config, info)
        marks = torch.randint(-1, options.classes, (images,), generator=source).to(device)
        self.state["marks"].copy_(marks)
        # counts[classes] holds the images without a pseudo-label: -1 % (classes + 1) == classes
        self.state["counts"].copy_(torch.bincount(marks % (options.classes + 1)))
        self.marks = marks
        self.step = 0

    def update(self, decide: Decide) -> Tensor:
        """Run one update; return which images are trusted."""
        self.step += 1
        logits, batch = self.logits[self.step % 8], self.batches[self.step % 256]
        return decide(logits, batch, self.state, self.config, self.ranks).trusted


def run(options: CplOptions) -> dict[str, Any]:
    """Measure our update; return the record."""
    choose_device(options.device, 0)  # raises if there is no such device
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the result does not depend on the number of cores
    try:
        return record(options, interleave(cases(options), options.repetitions))
    finally:
        torch.set_num_threads(threads)


def cases(options: CplOptions) -> dict[str, Case]:
    """Return the cases, named by form and number of images; each returns updates per second."""
    compiled = torch.compile(cpl.curriculum, fullgraph=True, dynamic=False)
    made: dict[str, Case] = {}
    for images in options.images:
        work = Work(options, images)
        made[f"fastssl {images}"] = timed(partial(work.update, compiled), options.updates)
        eager = partial(work.update, cpl.curriculum)
        made[f"eager {images}"] = timed(eager, options.updates // 4 + 1)
    return made


def timed(update: Callable[[], Tensor], times: int) -> Case:
    """Return a case that runs some updates and returns updates per second."""

    def run_updates() -> int:
        for _ in range(times):
            trusted = update()
        if trusted.is_cuda:
            torch.cuda.synchronize()
        return times

    return lambda: rate(run_updates)


def count_kernels(options: CplOptions) -> dict[str, int]:
    """Count kernels, their calls and all other calls in the code that the compiler generates."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    work = Work(options, min(options.images))
    compiled = torch.compile(cpl.curriculum, fullgraph=True, dynamic=False)
    _, codes = run_and_get_code(
        compiled, work.logits[0], work.batches[0], work.state, work.config, work.ranks
    )
    code = "\n".join(codes)
    return {
        "kernels": len(re.findall(r"^(?:cpp|triton)_\w* = async_compile", code, re.MULTILINE)),
        "calls": len(re.findall(r"^\s+(?:cpp_fused\w*|triton_\w+\.run)\(", code, re.MULTILINE)),
        "fallbacks": len(re.findall(r"extern_kernels\.|aten\.\w+\.\w+\(", code)),
    }


def _logits(options: CplOptions, source: torch.Generator) -> Tensor:
    """Return logits [batch, classes] of which some are confident."""
    logits = torch.randn(options.batch, options.classes, generator=source)
    top = torch.randint(options.classes, (options.batch,), generator=source)
    logits[torch.arange(options.batch), top] += 14 * torch.rand(options.batch, generator=source)
    return logits


def _batch(positions: Tensor) -> Batch:
    empty = positions[:0]
    return Batch(empty, empty, {}, positions, positions, empty)


def record(options: CplOptions, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the record; cases are named "FORM IMAGES"."""
    least, most = min(options.images), max(options.images)
    results = []
    for case, values in measured.items():
        name, images = case.split()
        us = round(1e6 / values.median, 1)
        results.append(values.row(name, "updates/s", images=int(images), us=us))
    growth = measured[f"fastssl {least}"].median / measured[f"fastssl {most}"].median
    settings = {"classes": options.classes, "batch": options.batch, "threads": 1}
    return make_record(
        "cpl",
        {**settings, "device": options.device},
        results,
        {"growth": round(growth, 3)},
        generated=count_kernels(options),
    )
