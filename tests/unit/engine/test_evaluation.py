"""Every metric of an evaluation against scikit-learn or a plain computation."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from fastssl.config.resolve import load
from fastssl.distributed.collectives import Ranks
from fastssl.engine import devices, evaluation
from fastssl.engine.build import assemble
from fastssl.errors import ConfigError
from pipelines.loader.evaluation import EvaluationBatches
from tests.runs import TINY
from tests.small_stores import make_store


def some(classes, n=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator)
    logits[torch.arange(n), labels] += 1.5
    return logits, labels


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_metrics_equal_those_of_scikit_learn(classes):
    logits, labels = some(classes)
    found = evaluation.compute_metrics(logits, labels)
    y, predicted = labels.numpy(), logits.argmax(1).numpy()
    p = logits.double().softmax(1).numpy()
    assert found["error"] == pytest.approx(100 * (1 - sk.accuracy_score(y, predicted)))
    named = {"average": "macro", "zero_division": 0}
    assert found["precision"] == pytest.approx(sk.precision_score(y, predicted, **named))
    assert found["recall"] == pytest.approx(sk.recall_score(y, predicted, **named))
    assert found["f1"] == pytest.approx(sk.f1_score(y, predicted, **named))
    if classes == 2:
        assert found["auc"] == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    else:
        assert found["auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert found["loss"] == pytest.approx(sk.log_loss(y, p))
    assert ("top5_error" in found) == (classes > 5)
    if classes > 5:
        top = sk.top_k_accuracy_score(y, p, k=5)
        assert found["top5_error"] == pytest.approx(100 * (1 - top))
    table = sk.confusion_matrix(y, predicted)
    assert np.array_equal(evaluation.confusion(logits, labels), table)
    assert found["class_accuracy"] == pytest.approx(list(np.diag(table) / table.sum(1)), abs=1e-6)


def test_calibration_by_hand():
    logits, labels = some(4)
    p = logits.double().softmax(1).numpy()
    confidence, right = p.max(1), p.argmax(1) == labels.numpy()
    total = 0.0
    for low in range(15):
        inside = [k for k, s in enumerate(confidence) if low / 15 <= s < (low + 1) / 15]
        if inside:
            total += (
                len(inside)
                / len(confidence)
                * abs(confidence[inside].mean() - right[inside].mean())
            )
    assert evaluation.compute_metrics(logits, labels)["ece"] == pytest.approx(total)


def test_many_classes_and_absent_classes():
    logits, labels = some(101)
    assert evaluation.compute_metrics(logits, labels)["auc"] is None
    logits, labels = some(5)
    keep = labels != 3
    found = evaluation.compute_metrics(logits[keep], labels[keep])
    assert found["class_accuracy"][3] == 0
    assert 0 < found["auc"] < 1


def test_a_rank_without_images_has_tables_of_the_right_shape(tmp_path):
    model, store = torch.nn.Linear(2, 3), make_store(tmp_path, formats=("dali",))
    device = devices.Device(torch.device("cpu"), "fp32", 1, 1)
    batches = EvaluationBatches(store, "test", np.arange(0), size=(8, 8))
    logits, labels = evaluation.predict_split(model, batches, device, Ranks())
    assert (logits.shape, logits.dtype) == ((0, store.classes), torch.float32)
    assert (labels.shape, labels.dtype) == ((0,), torch.int64)
    assert model.training


def test_a_run_is_not_built_if_its_evaluation_cannot_be_cropped(data):
    # 16-pixel digits with a border of 2 can be cropped to 18 pixels in training only.
    resolved = load("digits", [*TINY, "image_size=18"])
    with pytest.raises(ConfigError, match="test images"):
        assemble(resolved, devices.choose(resolved.config))
