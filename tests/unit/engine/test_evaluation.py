"""Every metric of an evaluation against scikit-learn or a plain computation."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import fastssl
from fastssl.config.resolve import load, parse_overrides
from fastssl.distributed.collectives import Ranks
from fastssl.engine import devices, evaluation, loop
from fastssl.engine.build import assemble
from fastssl.engine.build_data import images_for_statistics
from fastssl.errors import ConfigError
from pipelines.loader.evaluation import EvaluationBatches
from tests import runs
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


def test_recomputed_statistics_are_the_means_of_those_of_the_batches():
    generator = torch.Generator().manual_seed(0)
    batches = [(3 + torch.randn(4, 2, 5, 5, generator=generator), None) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.BatchNorm2d(2, momentum=0.3))
    model.eval()
    device = devices.resolve(load("digits").config)
    evaluation.recompute_statistics(model, batches, device)
    pixels = [images.transpose(0, 1).reshape(2, -1).double() for images, _ in batches]
    mean = torch.stack([one.mean(dim=1) for one in pixels]).mean(dim=0)
    variance = torch.stack([one.var(dim=1) for one in pixels]).mean(dim=0)
    torch.testing.assert_close(model[1].running_mean.double(), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(model[1].running_var.double(), variance, atol=1e-6, rtol=0)
    assert model[1].momentum == 0.3 and not any(one.training for one in model.modules())
    evaluation.recompute_statistics(model, [], device)
    torch.testing.assert_close(model[1].running_mean.double(), mean, atol=1e-6, rtol=0)


def test_ranks_share_the_batches_from_which_statistics_are_recomputed():
    config = load("digits", ["bn_recompute=70", "eval_batch=16"]).config
    unlabeled = np.arange(1000, 1100)
    alone = images_for_statistics(config, unlabeled, Ranks())
    assert len(set(alone)) == 64 and set(alone) <= set(unlabeled) and list(alone) != sorted(alone)
    shares = [images_for_statistics(config, unlabeled, Ranks(rank, 2)) for rank in range(2)]
    together = np.concatenate([one.reshape(-1, 8) for one in shares], axis=1)
    assert np.array_equal(together.reshape(-1), alone)
    assert len(images_for_statistics(load("digits").config, unlabeled, Ranks())) == 0
    with pytest.raises(ConfigError, match="expected at least eval_batch"):
        load("digits", ["bn_recompute=15", "eval_batch=16"])


def test_recomputed_statistics_change_evaluations_and_checkpoints_alone(
    data, tmp_path, monkeypatch
):
    real = loop.train_step

    def train_step(learner, batch, step):
        # A step may run the teacher in eval mode: no evaluation before it may matter.
        pairs = zip(learner.ema.model.buffers(), learner.model.buffers(), strict=True)
        assert all(own.equal(theirs) for own, theirs in pairs)
        return real(learner, batch, step)

    monkeypatch.setattr(loop, "train_step", train_step)
    words = [word for word in TINY if not word.startswith("threads")]
    for name, images in {"plain": 0, "whole": 720}.items():
        settings = parse_overrides([*words, f"bn_recompute={images}"])
        fastssl.train("digits", out=tmp_path / name, **settings)
    plain, whole = runs.last(tmp_path / "plain"), runs.last(tmp_path / "whole")
    runs.assert_same(plain["model"], whole["model"], "model")
    changed = {name for name in plain["ema"] if not plain["ema"][name].equal(whole["ema"][name])}
    assert {name.split(".")[-1] for name in changed} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    losses = [
        [line["loss"] for line in runs.metrics(tmp_path / name) if line["kind"] == "eval"]
        for name in ("plain", "whole")
    ]
    assert len(losses[0]) > 1 and all(a != b for a, b in zip(*losses, strict=True))
    fastssl.train("digits", out=tmp_path / "whole", resume=True, **{**settings, "steps": 9})


def test_a_run_with_recomputed_statistics_resumes_exactly(data, tmp_path):
    words = ["bn_recompute=720"]
    assert runs.train(tmp_path / "whole", *words) == 0
    assert runs.train(tmp_path / "broken", *words, kill_at=7) == -9
    assert runs.train(tmp_path / "broken", *words, resume=True) == 0
    runs.assert_same_run(tmp_path / "whole", tmp_path / "broken")
