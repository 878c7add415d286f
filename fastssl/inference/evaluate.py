"""The verb `eval`: the metrics of a run's model on a test set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastssl.engine.build_data import find_store
from fastssl.engine.evaluation import compute_metrics, confusion
from fastssl.errors import DataError
from fastssl.inference.predictor import Predictor
from fastssl.inference.store_match import match_labels, notes_on
from pipelines.store.store import open_store
from pipelines.text import listed

CONFUSED = 5  # pairs of classes that are printed
MATRIX = 100  # classes of the largest confusion matrix in the result


def evaluate(
    path: Path, which: str = "best", store: str | None = None, *, trust_code: bool = False
) -> dict[str, Any]:
    """Return the metrics of a run's model on a test set, matched by the names of the classes."""
    model = Predictor(path, which, trust_code=trust_code)
    found = open_store(store) if store else find_store(model.resolved)
    labels = match_labels(model, found, "test") if "test" in found.splits else np.empty(0)
    indices = np.flatnonzero(labels >= 0)
    if not len(indices):
        raise DataError(
            f"{found.path} has no test images with a label",
            "convert with --test DIR, or type --store",
        )
    notes = notes_on(model, found, "test")
    logits = torch.from_numpy(np.concatenate(list(model.store(found, "test", indices))))
    truth = torch.from_numpy(labels[indices])
    metrics = compute_metrics(logits, truth)
    counts = confusion(logits, truth)
    lacking = [
        name for name, count in zip(model.classes, counts.sum(axis=1), strict=True) if not count
    ]
    if lacking:
        notes.append(
            f"the test set has no image of {listed(lacking)}; precision, recall and f1, which are "
            "means over classes, count 0 for them"
        )
    return {
        "run": str(path),
        "checkpoint": which,
        "step": model.content["trip"]["step"],
        "images": len(indices),
        "accuracy": 100 - metrics["error"],
        **metrics,
        "classes": model.classes,
        "confused": most_confused(model.classes, counts),
        "confusion": counts.tolist() if len(counts) <= MATRIX else None,
        "notes": notes,
    }


def most_confused(classes: list[str], counts: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the pairs of classes that are confused most often."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSED]
    return [
        {
            "class": classes[truth],
            "predicted as": classes[predicted],
            "images": f"{wrong[truth, predicted]} of {counts[truth].sum()}",
        }
        for truth, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[truth, predicted]
    ]
