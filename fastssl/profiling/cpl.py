"""The time of one curriculum update: ours, compiled, against recounting all marks each step.

Ours must not grow with the number of unlabelled images; the published form does. Both get the
same weak logits and positions, and both decide the mask and remember the sure guesses.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fastssl.algorithms import DatasetInfo, State
from fastssl.algorithms.common import cpl
from fastssl.distributed.collectives import SingleRank
from fastssl.engine.devices import choose_device
from fastssl.errors import ConfigError
from fastssl.profiling.measure import Measured, environment, interleave
from pipelines.loader.batch import Batch


@dataclass(frozen=True)
class Options:
    """What can be asked of this measurement."""

    images: tuple[int, ...] = (50_000, 1_281_167)
    """Numbers of unlabelled images; growth is from the smallest to the largest."""
    classes: int = 1000
    """Classes."""
    batch: int = 128
    """Unlabelled images of a step."""
    repetitions: int = 7
    """Counted rounds; one more warms up."""
    updates: int = 300
    """Updates of one repetition of ours; the Counter form does one to three."""
    device: str = "cpu"
    """cpu or cuda: where logits and state lie."""


class Work:
    """Logits, positions and marks of one size, with most images marked, as late in a run."""

    def __init__(self, asked: Options, images: int) -> None:
        source = torch.Generator().manual_seed(0)
        self.config, self.ranks = cpl.CurriculumSettings(), SingleRank()
        self.logits = [_logits(asked, source).to(asked.device) for _ in range(8)]
        self.position = [
            torch.randint(images, (asked.batch,), generator=source).to(asked.device)
            for _ in range(256)
        ]
        self.batches = [_batch(position) for position in self.position]
        shares = torch.full((asked.classes,), 1 / asked.classes, device=asked.device)
        info = DatasetInfo(asked.classes, images, shares, torch.device(asked.device))
        self.state = cpl.init_state(self.config, info)
        marks = torch.randint(-1, asked.classes, (images,), generator=source).to(asked.device)
        self.state["marks"].copy_(marks)
        self.state["counts"].copy_(torch.bincount(marks % (asked.classes + 1)))
        self.marks = marks
        self.step = 0

    def ours(self, decide: Callable[..., cpl.Decision]) -> Tensor:
        """Take one step our way."""
        self.step += 1
        logits, batch = self.logits[self.step % 8], self.batches[self.step % 256]
        return decide(logits, batch, self.state, self.config, self.ranks).trusted

    def counter(self) -> Tensor:
        """Take one step the published way."""
        self.step += 1
        logits, position = self.logits[self.step % 8], self.position[self.step % 256]
        return counted(logits, position, self.marks, self.config.threshold)


def counted(logits: Tensor, position: Tensor, marks: Tensor, threshold: float) -> Tensor:
    """Decide and remember by counting all marks in Python; warm-up form, convex mapping."""
    count = Counter(marks.tolist())
    most = max(count.values())
    learnt = torch.tensor([count[c] / most for c in range(logits.shape[1])])
    learnt = learnt.to(logits.device)
    confidence, pseudo_label = logits.softmax(dim=1).max(dim=1)
    trusted = confidence >= threshold * (learnt[pseudo_label] / (2 - learnt[pseudo_label]))
    sure = confidence >= threshold
    marks[position[sure]] = pseudo_label[sure]
    return trusted.float()


def run(options: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Measure; return the record."""
    asked = _options({**(options or {}), **more})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the Counter form has one; and so the figures do not depend on it
    try:
        decide = torch.compile(_decide, fullgraph=True, dynamic=False)
        cases: dict[str, Callable[[], float]] = {}
        for images in asked.images:
            cases |= _cases(asked, images, decide)
        measured = interleave(cases, asked.repetitions)
        return _record(asked, measured, generated(asked))
    finally:
        torch.set_num_threads(threads)


def _decide(
    logits: Tensor, batch: Batch, state: State, config: Any, ranks: SingleRank
) -> cpl.Decision:
    return cpl.curriculum(logits, batch, state, config, ranks)


def _cases(
    asked: Options, images: int, decide: Callable[..., cpl.Decision]
) -> dict[str, Callable[[], float]]:
    work = Work(asked, images)
    few = 3 if images < 200_000 else 1
    return {
        f"fastssl {images}": lambda: _seconds(lambda: work.ours(decide), asked.updates),
        f"eager {images}": lambda: _seconds(lambda: work.ours(_decide), asked.updates // 4 + 1),
        f"counter {images}": lambda: _seconds(work.counter, few),
    }


def _seconds(update: Callable[[], Tensor], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        done = update()
    if done.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


def generated(asked: Options) -> dict[str, int]:
    """Count kernels, their calls and calls of anything else in the code the compiler wrote."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    work = Work(asked, min(asked.images))
    compiled = torch.compile(_decide, fullgraph=True, dynamic=False)
    _, codes = run_and_get_code(
        compiled, work.logits[0], work.batches[0], work.state, work.config, work.ranks
    )
    code = "\n".join(codes)
    return {
        "kernels": len(re.findall(r"^(?:cpp|triton)_\w* = async_compile", code, re.MULTILINE)),
        "calls": len(re.findall(r"^\s+(?:cpp_fused\w*|triton_\w+\.run)\(", code, re.MULTILINE)),
        "fallbacks": len(re.findall(r"extern_kernels\.|aten\.\w+\.\w+\(", code)),
    }


def _logits(asked: Options, source: torch.Generator) -> Tensor:
    logits = torch.randn(asked.batch, asked.classes, generator=source)
    favourite = torch.randint(asked.classes, (asked.batch,), generator=source)
    logits[torch.arange(asked.batch), favourite] += 14 * torch.rand(asked.batch, generator=source)
    return logits


def _batch(position: Tensor) -> Batch:
    nothing = position[:0]
    return Batch(nothing, nothing, {}, position, position, nothing)


def _options(given: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise ConfigError(f"cpl has no option {name!r}", f"take: {', '.join(sorted(known))}")
    asked = Options(**given)
    if not asked.images or min(asked.images) < 1:
        raise ConfigError("cpl needs numbers of images", "take images=50000,1281167")
    choose_device(asked.device, 0)  # a GPU that is not there is told at once
    return asked


def _record(
    asked: Options, measured: Mapping[str, Measured], code: dict[str, int]
) -> dict[str, Any]:
    least, most = min(asked.images), max(asked.images)
    ours = measured[f"fastssl {most}"].median
    return {
        "what": "cpl",
        "environment": environment(),
        "settings": {
            "classes": asked.classes,
            "batch": asked.batch,
            "threads": 1,
            "device": asked.device,
        },
        "results": [
            {
                "name": name.split()[0],
                "images": int(name.split()[1]),
                "rate": round(1 / case.median, 1),
                "unit": "updates/s",
                "us": round(1e6 * case.median, 1),
                "spread": round(case.spread / case.median**2, 1),
            }
            for name, case in measured.items()
        ],
        "ratio": {
            "counter": round(measured[f"counter {most}"].median / ours, 1),
            "growth": round(ours / measured[f"fastssl {least}"].median, 3),
        },
        "generated": code,
    }
