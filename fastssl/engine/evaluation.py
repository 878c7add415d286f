"""Judging a model: every figure of an evaluation from the logits of all images at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastssl.engine.devices import Device

Array = npt.NDArray[np.float64]
AUC_CLASSES = 100  # above, one-vs-rest AUC costs more than it tells
ECE_BINS = 15
TOP = 5


@torch.inference_mode()
def predict(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: Device, classes: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the logits [n, C] and the labels [n] of all batches, on the device, in order.

    Where there is no batch, as on a rank whose share is empty, n is 0 and C is `classes`.
    """
    was = model.training
    model.eval()
    logits, labels = [], []
    for images, truth in batches:
        with device.autocast():
            logits.append(model(images).float().clone())
        labels.append(truth.clone())
    model.train(was)
    if not logits:
        none = torch.empty(0, dtype=torch.int64, device=device.device)
        return torch.empty((0, classes), device=device.device), none
    return torch.cat(logits), torch.cat(labels)


def judge(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return every figure, errors in percent; AUC is None where it can't be told."""
    scores = logits.double().cpu()
    truth = labels.cpu()
    classes = scores.shape[1]
    probability = scores.softmax(dim=1).numpy()
    pseudo_label = scores.argmax(dim=1).numpy()
    y = truth.numpy()
    table = confusion(y, pseudo_label, classes)
    figures: dict[str, Any] = {"error": 100 * float((pseudo_label != y).mean())}
    if classes > TOP:
        best = scores.topk(TOP, dim=1).indices
        figures["top5_error"] = 100 * float((~(best == truth[:, None]).any(dim=1)).double().mean())
    figures["loss"] = float(nn.functional.cross_entropy(scores, truth))
    figures |= macro(table)
    figures["auc"] = auc(y, probability)
    figures["ece"] = calibration(y, pseudo_label, probability.max(axis=1))
    shares = np.diag(table) / np.maximum(table.sum(axis=1), 1)
    figures["class_accuracy"] = [round(float(share), 6) for share in shares]
    return figures


def confusion(truth: npt.NDArray[Any], pseudo_label: npt.NDArray[Any], classes: int) -> Array:
    """Count guesses (columns) for every true class (rows)."""
    flat = np.bincount(truth * classes + pseudo_label, minlength=classes * classes)
    return flat.reshape(classes, classes).astype(np.float64)


def confused(logits: Tensor, labels: Tensor) -> list[list[int]]:
    """Return the counts of `confusion` as a record holds them."""
    pseudo_label = logits.argmax(dim=1).cpu().numpy()
    table = confusion(labels.cpu().numpy(), pseudo_label, logits.shape[1])
    return [[int(count) for count in row] for row in table]


def macro(table: Array) -> dict[str, float]:
    """Return precision, recall and F1, each the mean over classes; 0/0 counts as 0."""
    hits = np.diag(table)
    precision = hits / np.maximum(table.sum(axis=0), 1)
    recall = hits / np.maximum(table.sum(axis=1), 1)
    both = precision + recall
    f1 = np.where(both > 0, 2 * precision * recall / np.where(both > 0, both, 1), 0)
    means = precision.mean(), recall.mean(), f1.mean()
    return dict(zip(("precision", "recall", "f1"), map(float, means), strict=True))


def auc(truth: npt.NDArray[Any], probability: Array) -> float | None:
    """Return the one-vs-rest area under the curve, averaged over the classes that occur."""
    classes = probability.shape[1]
    present = [c for c in range(classes) if 0 < (truth == c).sum() < len(truth)]
    if classes > AUC_CLASSES or not present:
        return None
    from sklearn.metrics import roc_auc_score

    return float(np.mean([roc_auc_score(truth == c, probability[:, c]) for c in present]))


def calibration(truth: npt.NDArray[Any], pseudo_label: npt.NDArray[Any], sure: Array) -> float:
    """Return the expected calibration error over 15 equal bins of confidence."""
    bins = np.minimum((sure * ECE_BINS).astype(int), ECE_BINS - 1)
    right = (truth == pseudo_label).astype(np.float64)
    count = np.bincount(bins, minlength=ECE_BINS)
    gap = np.abs(np.bincount(bins, right, ECE_BINS) - np.bincount(bins, sure, ECE_BINS))
    return float(gap[count > 0].sum() / len(truth))
