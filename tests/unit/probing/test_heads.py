"""Heads on features: against closed forms, and their choice by cross-validation."""

import math
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from fastssl.probing import graph, heads, probe
from fastssl.probing.graph import Space
from fastssl.probing.heads import Linear, Query, Task
from fastssl.probing.probe import make_task, measure


def blobs(count=60, classes=3, width=8, seed=0, noise=1.0):
    random = np.random.default_rng(seed)
    truth = np.arange(count) % classes
    centers = random.normal(size=(classes, width)) * 3
    rows = centers[truth] + noise * random.normal(size=(count, width))
    return (5 + 7 * rows).astype(np.float32), truth


def task_of(rows, truth, labeled, classes=3):
    space = Space.of(rows)
    return Task(space, graph.neighbor_graph(space), labeled, truth[labeled], classes)


@pytest.mark.parametrize("a", graph.ALPHAS)
@pytest.mark.parametrize("with_prior", [False, True])
def test_spreading_equals_its_closed_form(a, with_prior):
    random = np.random.default_rng(0)
    dense = np.triu(random.random((12, 12)) * (random.random((12, 12)) < 0.5), 1)
    weights = dense + dense.T
    scale = np.diag(weights.sum(axis=1) ** -0.5)
    labeled, labels = np.array([0, 3, 7, 9]), np.array([1, 0, 1, 2])
    prior = random.dirichlet(np.ones(3), size=12) if with_prior else None
    given = np.zeros((12, 3)) if prior is None else graph.PRIOR * prior
    given[labeled] = np.eye(3)[labels]
    given /= given.sum(axis=0)
    exact = np.linalg.inv(np.eye(12) - a * scale @ weights @ scale) @ given
    exact /= exact.sum(axis=1, keepdims=True)
    normal = graph.normalized(sparse.csr_array(weights))
    found = graph.spread(normal, labeled, labels, 3, a, prior)
    np.testing.assert_allclose(found, exact, atol=1e-4)


def test_spreading_takes_twice_the_memory_of_its_result():
    count, classes = 4_000, 50
    ring = sparse.eye_array(count, k=1, format="csr") + sparse.eye_array(count, k=7, format="csr")
    normal = graph.normalized(sparse.csr_array(ring + ring.T))
    labeled = np.arange(0, 2 * classes)
    tracemalloc.start()
    found = graph.spread(normal, labeled, labeled % classes, classes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.2 * found.nbytes
    given = np.zeros((count, classes))
    given[labeled, labeled % classes] = 0.5
    alpha = graph.ALPHAS[0]
    plain = (1 - alpha) * given
    for _ in range(math.ceil(math.log(graph.ERROR) / math.log(alpha))):
        plain = alpha * (normal @ plain) + (1 - alpha) * given
    np.testing.assert_allclose(found, graph.shares(plain + 1e-15), rtol=1e-12)


def test_spreading_starts_from_a_linear_classifier_also_for_images_outside_the_graph():
    rows, truth = blobs(noise=6.0)
    task, queries, a = task_of(rows[:50], truth, np.arange(12)), rows[50:], 0.5
    task = replace(task, c=0.01)
    linear = heads.linear(task, 0.01)
    inside = graph.spread(task.graph, task.labeled, task.labels, 3, a, linear(Query(rows[:50])))
    predict = heads.spreading(task, a)
    np.testing.assert_allclose(predict(Query(rows[:50], np.arange(50))), inside)
    cosine = task.space.unit(queries) @ task.space.unit(rows[:50]).T
    for image, own in enumerate(linear(Query(queries))):
        near = np.argsort(-cosine[image])[: graph.NEIGHBORS]
        weight = np.clip(cosine[image, near], 1e-3, None)[:, None] ** graph.POWER
        of_neighbors = (weight * inside[near]).sum(axis=0) / weight.sum()
        expected = a * of_neighbors + (1 - a) * graph.PRIOR * own
        found = predict(Query(queries[image : image + 1]))[0]
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)


def test_labels_spread_from_the_linear_classifier_that_cross_validation_chose():
    rows, truth = blobs(noise=4.0)
    task = task_of(rows, truth, np.arange(24))
    queries = {"test": (Query(rows, np.arange(len(rows))), torch.from_numpy(truth))}
    outcomes, _, _ = probe.compare(task, queries, 0)
    found = {one.name: one for one in outcomes}
    c, alpha = found["linear"].score.setting, found["spreading"].score.setting
    assert c != task.c
    expected = heads.spreading(replace(task, c=c), alpha)
    assert found["spreading"].metrics == probe.measure(expected, queries)
    assert found["spreading"].metrics != probe.measure(heads.spreading(task, alpha), queries)


def test_unit_features_take_little_more_memory_than_the_result():
    rows = np.random.default_rng(0).normal(size=(10 * graph.CHUNK, 16)).astype(np.float32)
    space = Space.of(rows)
    tracemalloc.start()
    found = space.unit(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * found.nbytes
    plain = (rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)) / rows.std(axis=0)
    expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_features_are_not_copied_where_validation_is_held_out(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(10 * graph.CHUNK, 16)).astype(np.float32)
    labeled, unlabeled = np.arange(0, 20, 2), np.arange(21, len(rows))
    store = SimpleNamespace(labels=lambda split: np.arange(len(rows)) % 5, classes=5)
    split = SimpleNamespace(labeled=labeled, unlabeled=unlabeled)
    monkeypatch.setattr(graph, "neighbor_graph", lambda space: None)
    tracemalloc.start()
    task = make_task(store, split, rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.8 * rows.nbytes  # a part of the rows in double precision, and the indices
    seen = np.concatenate([labeled, unlabeled])
    expected = Space.of(rows[seen])
    assert np.array_equal(task.space.mean, expected.mean)
    assert np.array_equal(task.space.std, expected.std)
    assert np.array_equal(task.rows, rows[labeled])
    assert np.array_equal(task.space.unit(task.space.rows), expected.unit(rows[seen]))


def test_the_graph_holds_the_nearest_neighbors_by_cosine_and_no_loops():
    rows, _ = blobs()
    space = Space.of(rows)
    standard = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    cosine = np.corrcoef(np.c_[standard, -standard])[:60, :60]  # mean 0: a cosine
    near = cosine - 2 * np.eye(60)
    expected = np.zeros((60, 60))
    for image in range(60):
        best = np.argsort(-near[image])[: graph.NEIGHBORS]
        expected[image, best] = np.clip(near[image, best], 1e-3, None) ** graph.POWER
    expected = np.maximum(expected, expected.T)
    scale = expected.sum(axis=1) ** -0.5
    found = graph.neighbor_graph(space).toarray()
    np.testing.assert_allclose(found, scale[:, None] * expected * scale, atol=1e-5)


def test_an_approximate_graph_has_nearly_the_edges_of_the_exact_one(monkeypatch):
    rows, _ = blobs(2000, 8, 16)
    exact = graph.neighbor_graph(Space.of(rows)) > 0
    monkeypatch.setattr(graph, "EXACT", 500)
    monkeypatch.setattr(graph, "GROUP", 100)
    found = graph.neighbor_graph(Space.of(rows)) > 0
    assert found.shape == exact.shape
    assert (found * exact).sum() > 0.9 * exact.sum()


def test_images_are_grouped_by_cluster_also_where_one_is_empty():
    clusters = np.array([3, 0, 3, 1, 0], np.int32)
    found = graph.grouped(clusters, 5)
    assert [group.tolist() for group in found] == [[1, 4], [3], [], [0, 2], []]
    assert [group.tolist() for group in graph.grouped(clusters * 0, 1)] == [[0, 1, 2, 3, 4]]


def test_nearest_images_are_the_same_in_parts_and_at_once(monkeypatch):
    rows, _ = blobs(300)
    space = Space.of(rows[:250])
    queries = space.unit(rows[250:])
    index, cosine = graph.nearest_images(space, queries, 7)
    monkeypatch.setattr(graph, "EXACT", 60)
    parts, same = graph.nearest_images(space, queries, 7)
    assert np.array_equal(index, parts)
    np.testing.assert_allclose(cosine, same, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_head_is_logistic_regression_of_standardized_features(classes):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, truth = blobs(60, classes)
    rows[:, 2] = 4.0  # a feature that never changes
    task = task_of(rows, truth, np.arange(60), classes)
    expected = make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(rows, truth)
    found = heads.linear(task, 0.1)(Query(rows))
    np.testing.assert_allclose(found, expected.predict_proba(rows), atol=1e-4)


def test_a_class_without_a_label_is_never_predicted():
    rows, truth = blobs()
    task = task_of(rows, truth, np.flatnonzero(truth != 1))
    for name, (build, settings) in heads.HEADS.items():
        found = build(task, settings[0])(Query(rows))
        assert found.shape == (60, 3) and found[:, 1].max() < 1e-9, name
        np.testing.assert_allclose(found.sum(axis=1), 1)


def test_a_class_that_gets_its_first_labels_later_can_be_learned():
    rows, truth = blobs()
    task = task_of(rows, truth, np.flatnonzero(truth != 1))
    fitted = heads.fit_linear(task, 1.0, task.rows, task.labels)
    layer = torch.nn.Linear(8, 3)
    with torch.no_grad():
        for own, value in zip(layer.parameters(), fitted.unfolded(task.space), strict=True):
            own.copy_(torch.from_numpy(value))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    images, labels = torch.from_numpy(rows), torch.from_numpy(truth)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(images), labels).backward()
        optimizer.step()
    assert (layer(images).argmax(dim=1) == labels)[labels == 1].double().mean() > 0.8


def test_knn_takes_the_label_of_the_nearest_image_by_cosine():
    rows, truth = blobs()
    labeled = np.arange(0, 60, 4)
    task = task_of(rows, truth, labeled)
    unit = task.space.unit(rows)
    expected = truth[labeled][(unit @ unit[labeled].T).argmax(axis=1)]
    assert np.array_equal(heads.knn(task, 1)(Query(rows)).argmax(axis=1), expected)


def test_folds_hold_out_every_image_but_the_only_one_of_its_class():
    labels = np.array([0] * 7 + [1] * 2 + [2])
    folds = heads.make_folds(labels)
    assert folds[-1] == -1 and (folds[:-1] >= 0).all()
    for fold in range(heads.FOLDS):
        left = labels[folds != fold]
        assert set(left) == {0, 1, 2}


def test_cross_validation_sees_no_label_that_is_held_out(monkeypatch):
    rows, truth = blobs()
    task = task_of(rows, np.random.default_rng(1).permutation(truth), np.arange(60))
    for name in heads.HEADS:  # nothing can be learned of random labels
        assert heads.cross_validate(task, name).accuracy < 0.6, name
    learned = task_of(rows, truth, np.arange(60))
    for name in heads.HEADS:
        assert heads.cross_validate(learned, name).accuracy > 0.9, name


def test_cross_validation_needs_two_labels_of_a_class():
    rows, truth = blobs()
    assert heads.cross_validate(task_of(rows, truth, np.arange(3)), "linear") is None


def test_distillation_follows_the_head_and_keeps_the_given_labels():
    rows, truth = blobs(noise=0.5)
    labeled = np.arange(6)
    wrong = truth.copy()
    wrong[0] = (truth[0] + 1) % 3
    task = task_of(rows, truth, labeled)
    uncertain = np.full((60, 3), 1 / 3)
    certain = np.eye(3)[truth]
    for share, expected in ((certain, 1.0), (0.5 * certain + 0.5 * uncertain, 1.0)):
        fitted = heads.distill(task, lambda query, share=share: share[query.indices])
        hits = fitted.logits(task.space, rows).argmax(axis=1) == truth
        assert hits.mean() == expected
    # Where the head knows nothing, its labels weigh nothing: only the given ones are fitted.
    fitted = heads.distill(task, lambda query: uncertain[query.indices])
    hits = fitted.logits(task.space, rows).argmax(axis=1) == truth
    assert hits[labeled].all() and hits.mean() > 0.9


def test_a_folded_classifier_gives_the_logits_of_standardized_features():
    rows, _ = blobs()
    space = Space.of(rows)
    random = np.random.default_rng(0)
    linear = Linear(random.normal(size=(3, 8)), random.normal(size=3))
    expected = ((rows - rows.mean(axis=0)) / rows.std(axis=0)) @ linear.weight.T + linear.bias
    np.testing.assert_allclose(linear.logits(space, rows), expected, atol=1e-4)


def test_ece_is_the_mean_gap_of_confidence_and_accuracy_over_bins():
    import torch

    random = np.random.default_rng(0)
    share = random.dirichlet(np.ones(4), 200)
    truth = random.integers(0, 4, 200)
    found = measure(lambda query: share, {"test": (Query(share), torch.from_numpy(truth))})
    confidence, hit = share.max(axis=1), share.argmax(axis=1) == truth
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            total += abs(hit[inside].mean() - confidence[inside].mean()) * inside.mean()
    assert found["ece"] == pytest.approx(total, abs=1e-9)
    assert found["error"] == pytest.approx(100 * (1 - hit.mean()))
