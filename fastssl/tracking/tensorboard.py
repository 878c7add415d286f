"""What TensorBoard shows beyond scalars: views, confidences, confusion, hyperparameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fastssl.config.resolve import ResolvedConfig, flatten
from fastssl.engine.evaluation import confusion
from fastssl.tracking.metrics import Record

SHOWN = 100  # classes of a confusion matrix that can still be seen
SIDE = 400  # pixels of its picture


def begin(record: Record, resolved: ResolvedConfig) -> None:
    """Show weak and strong views of some images, as `fastssl views` draws them."""
    from fastssl.engine.view_sheet import make_sheet

    record.guarded(
        "TensorBoard",
        lambda: record.board(
            "add_image", "views", np.asarray(make_sheet(resolved)), 0, dataformats="HWC"
        ),
    )


def evaluated(record: Record, logits: Tensor, labels: Tensor, step: int) -> None:
    """Show how sure the model is of the test images, and what it takes for what."""
    record.board("add_histogram", "eval/confidence", logits.softmax(dim=1).amax(dim=1), step)
    classes = logits.shape[1]
    if classes > SHOWN:
        return
    counts = confusion(labels.cpu().numpy(), logits.argmax(dim=1).cpu().numpy(), classes)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    picture = np.kron(1 - shares, np.ones((SIDE // classes, SIDE // classes)))
    record.board("add_image", "eval/confusion", picture.astype(np.float32), step, dataformats="HW")


def end(record: Record, resolved: ResolvedConfig, summary: dict[str, Any]) -> None:
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
    record.board("add_hparams", plain, results, run_name=".")
