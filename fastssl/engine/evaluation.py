"""Evaluating a model on images of a store.

The loop, `eval`, `predict` and the Python API all compute logits by `predict_batches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastssl.distributed.collectives import Ranks
from fastssl.engine.devices import Device
from fastssl.engine.progress import EvaluationMetrics
from fastssl.models.classifier import classifier_of, features_of, set_class_means
from pipelines.loader.evaluation import EvaluationBatches

AUC_CLASSES = 100  # with more classes, one-vs-rest AUC takes too long
ECE_BINS = 15
TOP = 5


def predict_batches(
    model: nn.Module, batches: EvaluationBatches, device: Device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits [n, C], float32, and the labels [n] of each batch.

    The model must be in eval mode.
    """
    for images, labels in batches:
        with torch.inference_mode(), device.autocast():
            logits = model(images).float()
        yield logits, labels


def predict_split(
    model: nn.Module, batches: EvaluationBatches, device: Device, ranks: Ranks
) -> tuple[Tensor, Tensor]:
    """Return the logits [n, C] and labels [n] of all images, in order, on the device.

    Every rank predicts its own batches and gets the result of all ranks.
    """
    training = model.training
    model.eval()
    # Start with no rows, so that a rank without images has tensors of the right shape. Labels are
    # copied because their buffer is used again for a later batch.
    logits = [torch.empty((0, batches.store.classes), device=device.device)]
    labels = [torch.empty(0, dtype=torch.int64, device=device.device)]
    for some, truth in predict_batches(model, batches, device):
        logits.append(some.clone())
        labels.append(truth.clone())
    model.train(training)
    return ranks.gather_uneven(torch.cat(logits)), ranks.gather_uneven(torch.cat(labels))


@torch.no_grad()
def recompute_statistics(model: nn.Module, batches: EvaluationBatches, device: Device) -> None:
    """Set BatchNorm's running statistics to the mean of those of the batches, if there are any."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    training = model.training
    model.eval()  # without dropout
    for number, (images, _) in enumerate(batches, 1):
        for norm in norms:
            norm.train()
            norm.momentum = 1 / number  # so that all batches count equally in the end
        with device.autocast():
            model(images)
    model.train(training)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum


@torch.no_grad()
def init_classifier(
    model: nn.Module, batches: EvaluationBatches, device: Device, ranks: Ranks
) -> None:
    """Set the classifier by the mean features of each class; see `set_class_means`.

    Every rank adds up the features of its own batches.
    """
    classifier = classifier_of(model, "head_init=means")
    training = model.training
    model.eval()
    sums = torch.zeros(classifier.weight.shape, dtype=torch.float64, device=device.device)
    counts, squares = sums.new_zeros(len(sums)), sums.new_zeros(())
    for images, labels in batches:
        with device.autocast():
            features = features_of(model, images).double()
        sums.index_add_(0, labels, features)
        counts += torch.bincount(labels, minlength=len(counts))
        squares += features.square().sum()
    model.train(training)
    total = [ranks.mean(part) * ranks.world for part in (sums, counts, squares)]
    set_class_means(classifier, *total)


def compute_metrics(logits: Tensor, labels: Tensor) -> EvaluationMetrics:
    """Return the metrics of logits [n, C] against labels [n]; waits for the device."""
    from sklearn.metrics import precision_recall_fscore_support

    scores, truth = logits.double().cpu(), labels.cpu()
    num_classes = scores.shape[1]
    probability = scores.softmax(dim=1).numpy()
    predicted = scores.argmax(dim=1).numpy()
    y = truth.numpy()
    # `recall` by class is the accuracy of that class.
    precision, recall, f1, _ = precision_recall_fscore_support(
        y, predicted, labels=range(num_classes), zero_division=0
    )
    metrics: EvaluationMetrics = {
        "error": 100 * float((predicted != y).mean()),
        "loss": float(nn.functional.cross_entropy(scores, truth)),
        "precision": float(precision.mean()),
        "recall": float(recall.mean()),
        "f1": float(f1.mean()),
        "auc": auc(y, probability),
        "ece": calibration_error(y == predicted, probability.max(axis=1)),
        "class_accuracy": [round(float(share), 6) for share in recall],
    }
    if num_classes > TOP:
        right = (scores.topk(TOP, dim=1).indices == truth[:, None]).any(dim=1)
        metrics["top5_error"] = 100 * float((~right).double().mean())
    return metrics


def confusion(logits: Tensor, labels: Tensor) -> npt.NDArray[np.int64]:
    """Return how often each true class (row) was predicted as each class (column)."""
    from sklearn.metrics import confusion_matrix

    predicted = logits.argmax(dim=1).cpu().numpy()
    counts: npt.NDArray[np.int64] = confusion_matrix(
        labels.cpu().numpy(), predicted, labels=range(logits.shape[1])
    )
    return counts


def auc(truth: npt.NDArray[Any], probability: npt.NDArray[np.float64]) -> float | None:
    """Return the one-vs-rest area under the ROC curve, averaged over the classes that occur."""
    # Not sklearn's multi_class="ovr", which refuses a test set that lacks a class.
    classes = probability.shape[1]
    present = [c for c in range(classes) if 0 < (truth == c).sum() < len(truth)]
    if classes > AUC_CLASSES or not present:
        return None
    from sklearn.metrics import roc_auc_score

    return float(np.mean([roc_auc_score(truth == c, probability[:, c]) for c in present]))


def calibration_error(correct: npt.NDArray[np.bool_], confidence: npt.NDArray[np.float64]) -> float:
    """Return the expected calibration error over 15 equal bins of confidence."""
    bins = np.minimum((confidence * ECE_BINS).astype(int), ECE_BINS - 1)
    gap = np.bincount(bins, correct, ECE_BINS) - np.bincount(bins, confidence, ECE_BINS)
    return float(np.abs(gap).sum() / len(correct))
