"""The verb `eval`: the metrics of a run's model on a test set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastssl.engine.build_data import find_store
from fastssl.engine.evaluation import compute_metrics
from fastssl.inference.predictor import Predictor
from pipelines.store.store import open_store


def evaluate(path: Path, which: str = "best", store: str | None = None) -> dict[str, Any]:
    """Return the metrics of a run's model on its test set."""
    model = Predictor(path, which)
    found = open_store(store) if store else find_store(model.resolved)
    indices = np.arange(found.splits["test"].count)
    logits = np.concatenate(list(model.store(found, "test", indices)))
    metrics = compute_metrics(torch.from_numpy(logits), torch.from_numpy(found.labels("test")))
    return {"run": str(path), "checkpoint": which, "step": model.content["trip"]["step"], **metrics}
