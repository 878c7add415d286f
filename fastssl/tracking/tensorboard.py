"""What TensorBoard shows beside scalars: views, confidence, confusion, hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from fastssl.config.resolve import ResolvedConfig, flatten
from fastssl.tracking.metrics import MetricsLog

SHOWN = 100  # classes up to which a confusion matrix is legible
SIDE = 400  # pixels of its side


def log_views(log: MetricsLog, sheet: Image.Image) -> None:
    """Show weak and strong views of some images, as `fastssl views` draws them."""
    log.tensorboard("add_image", "views", np.asarray(sheet), 0, dataformats="HWC")


def log_evaluation(
    log: MetricsLog, logits: Tensor, counts: npt.NDArray[np.int64] | None, step: int
) -> None:
    """Show the confidence for logits [n, C], and the confusion matrix [C, C] if there is one."""
    log.tensorboard("add_histogram", "eval/confidence", logits.softmax(dim=1).amax(dim=1), step)
    if counts is None:
        return
    shares = counts / counts.sum(axis=1, keepdims=True).clip(1)
    image = np.kron(1 - shares, np.ones((SIDE // len(counts), SIDE // len(counts))))
    log.tensorboard("add_image", "eval/confusion", image.astype(np.float32), step, dataformats="HW")


def log_hparams(log: MetricsLog, resolved: ResolvedConfig, summary: Mapping[str, Any]) -> None:
    """Enter the run in the HParams page, where runs are compared."""
    settings = {k: v for k, v in flatten(resolved.as_dict()).items() if v is not None}
    plain = {
        k: v if isinstance(v, int | float | bool | str) else str(v) for k, v in settings.items()
    }
    results = {
        f"result/{name}": summary[name]
        for name in ("best_error", "median_error")
        if summary[name] is not None
    }
    log.tensorboard("add_hparams", plain, results, run_name=".")
