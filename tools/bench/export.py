"""The time of every export format on this CPU: `python -m tools.bench.export RUN`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fastssl.inference.export import NEEDS, Run, check_name, open_exported, sample, write
from fastssl.inference.predictor import Predictor
from fastssl.tracking.tables import show


@torch.inference_mode()
def compare(run: Path, checkpoint: str = "best", repetitions: int = 7) -> list[dict[str, Any]]:
    """Time every format on the CPU, interleaved: median milliseconds for 1 and 32 images."""
    model = Predictor(run, checkpoint, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Run] = {"fastssl": model.model}
        for suffix in NEEDS:
            file = Path(folder) / f"model{suffix}"
            check_name(file)
            write(model, file)
            runs[suffix[1:]] = open_exported(file, model)
        times: dict[tuple[str, int], list[float]]
        times = {(name, count): [] for name in runs for count in (1, 32)}
        for _ in range(repetitions + 1):
            for (name, count), spent in times.items():
                images = sample(model, count)
                began = time.perf_counter()
                runs[name](images)
                spent.append(1e3 * (time.perf_counter() - began))
    # The first repetition is the warm-up.
    median = {key: sorted(spent[1:])[repetitions // 2] for key, spent in times.items()}
    return [
        {
            "format": name,
            "ms for 1 image": round(median[name, 1], 3),
            "ms for 32": round(median[name, 32], 3),
            "images/s": round(32e3 / median[name, 32]),
        }
        for name in runs
    ]


if __name__ == "__main__":
    show(compare(Path(sys.argv[1])), "--json" in sys.argv)
