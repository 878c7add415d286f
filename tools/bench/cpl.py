"""Our curriculum update against the published form, which counts all pseudo-labels every step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from fastssl.engine.devices import choose_device
from fastssl.profiling import cpl
from fastssl.profiling.measure import interleave
from fastssl.profiling.subjects import CplOptions


def run(options: CplOptions) -> dict[str, Any]:
    """Measure both forms at every number of images; return the record."""
    choose_device(options.device, 0)  # raises if there is no such device
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the published form uses one thread
    try:
        cases = cpl.cases(options)
        for images in options.images:
            updates = 3 if images < 200_000 else 1  # one takes up to a second
            cases[f"counter {images}"] = cpl.timed(PublishedForm(options, images).update, updates)
        measured = interleave(cases, options.repetitions)
        record = cpl.record(options, measured)
    finally:
        torch.set_num_threads(threads)
    most = max(options.images)
    ratio = measured[f"fastssl {most}"].median / measured[f"counter {most}"].median
    record["ratio"] = {"counter": round(ratio, 1), **record["ratio"]}
    return record


class PublishedForm:
    """The update as published: warm-up form, convex mapping."""

    def __init__(self, options: CplOptions, images: int) -> None:
        self.work = cpl.Work(options, images)

    def update(self) -> Tensor:
        """Run one update; return which images are trusted."""
        work = self.work
        work.step += 1
        logits, positions = work.logits[work.step % 8], work.positions[work.step % 256]
        threshold, marks = work.config.threshold, work.marks
        count = Counter(marks.tolist())
        most = max(count.values())
        learned = torch.tensor([count[c] / most for c in range(logits.shape[1])])
        learned = learned.to(logits.device)
        confidence, pseudo_label = logits.softmax(dim=1).max(dim=1)
        level = learned[pseudo_label]
        trusted = confidence >= threshold * (level / (2 - level))
        confident = confidence >= threshold
        marks[positions[confident]] = pseudo_label[confident]
        return trusted.float()
