"""What TensorBoard shows beyond scalars: views, confidences, confusion, hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from fastssl.config.resolve import ResolvedConfig, flatten
from fastssl.tracking.metrics import Record

SHOWN = 100  # classes of a confusion matrix that can still be seen
SIDE = 400  # pixels of its picture


def log_views(record: Record, sheet: Image.Image) -> None:
    """Show weak and strong views of some images, as `fastssl views` draws them."""
    record.board("add_image", "views", np.asarray(sheet), 0, dataformats="HWC")


def evaluated(record: Record, logits: Tensor, labels: Tensor, step: int) -> None:
    """Show how sure the model is of the test images, and what it takes for what."""
    record.board("add_histogram", "eval/confidence", logits.softmax(dim=1).amax(dim=1), step)
    classes = logits.shape[1]
    if classes > SHOWN:
        return
    from sklearn.metrics import confusion_matrix

    predicted = logits.argmax(dim=1).cpu().numpy()
    shares = confusion_matrix(
        labels.cpu().numpy(), predicted, labels=range(classes), normalize="true"
    )
    image = np.kron(1 - shares, np.ones((SIDE // classes, SIDE // classes)))
    record.board("add_image", "eval/confusion", image.astype(np.float32), step, dataformats="HW")


def end(record: Record, resolved: ResolvedConfig, summary: Mapping[str, Any]) -> None:
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
