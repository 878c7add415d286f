"""Classifiers on frozen features: linear, nearest neighbors, and labels spread over a graph.

The choice among them and among their settings is made by cross-validation on the labeled images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import softmax

from fastssl.probing import graph
from fastssl.probing.graph import Floats, Indices, Probabilities, Space

FOLDS = 5
MOST = 1_000  # labeled images in a cross-validation
MOST_DISTILLED = 20_000  # images that a linear classifier is fitted to
DISTILLED_C = 0.01  # inverse strength of the penalty then
SMALL = 5_000  # images up to which a fit in one thread is faster
# Logit of a class without a labeled image. The largest logit is above 0, so its probability is
# below 1e-12; at -1000 a training from these weights, with labels of the class, would diverge.
NEVER = -30.0


class Query(NamedTuple):
    """Images to classify."""

    rows: Floats  # [n, F] features as computed
    indices: Indices | None = None  # of training images


Predict = Callable[[Query], Probabilities]


@dataclass(frozen=True)
class Task:
    """The features of all training images, their graph, and the labels of some."""

    space: Space
    graph: sparse.csr_array  # see graph.neighbor_graph
    labeled: Indices  # [L] into the rows of the space
    labels: Indices  # [L]
    classes: int
    c: float = 1.0  # setting of the linear classifier that spreading starts from

    @cached_property
    def rows(self) -> Floats:
        """The features of the labeled images, [L, F]."""
        return np.asarray(self.space.rows[self.labeled])

    def part(self, positions: Indices) -> Task:
        """Return the task with some of its labels."""
        return replace(self, labeled=self.labeled[positions], labels=self.labels[positions])


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear classifier of standardized features."""

    weight: npt.NDArray[np.float64]  # [C, F]
    bias: npt.NDArray[np.float64]  # [C]

    def logits(self, space: Space, rows: Floats) -> npt.NDArray[np.float64]:
        """Return the logits of features as computed, [n, C]."""
        weight, bias = self.unfolded(space)
        return np.asarray(rows.astype(np.float64) @ weight.T + bias)

    def probabilities(self, space: Space, rows: Floats) -> Probabilities:
        """Return the probabilities of features as computed, [n, C]."""
        found: Probabilities = softmax(self.logits(space, rows), axis=1)
        return found

    def unfolded(self, space: Space) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return weight and bias for features that are not standardized."""
        weight = self.weight / space.std
        return weight, self.bias - weight @ space.mean


def fit_linear(task: Task, c: float, rows: Floats, labels: Indices, weights: Any = None) -> Linear:
    """Fit a logistic regression; a class without an image is never predicted."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # The products of few images are so small that threads wait for each other most of the time.
    threads = 1 if len(rows) < SMALL else None
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore", ConvergenceWarning)  # a result near the optimum will do
        model = LogisticRegression(C=c, max_iter=300)
        model.fit(task.space.standardized(rows), labels, sample_weight=weights)
    found, bias = model.coef_.astype(np.float64), model.intercept_.astype(np.float64)
    if len(found) == 1:  # of two classes scikit-learn fits the second alone
        found, bias = np.concatenate([-found, found]) / 2, np.concatenate([-bias, bias]) / 2
    weight = np.zeros((task.classes, found.shape[1]))
    all_bias = np.full(task.classes, NEVER)
    weight[model.classes_], all_bias[model.classes_] = found, bias
    return Linear(weight, all_bias)


def linear(task: Task, c: float) -> Predict:
    """Fit a logistic regression to the labeled images."""
    fitted = fit_linear(task, c, task.rows, task.labels)
    return lambda query: fitted.probabilities(task.space, query.rows)


def knn(task: Task, count: float) -> Predict:
    """Let the nearest labeled images vote, weighted by their cosines."""
    known = task.space.unit(task.rows)

    def predict(query: Query) -> Probabilities:
        index, cosine = graph.nearest(known, task.space.unit(query.rows), int(count))
        return _votes(task, task.labels[index], graph.edge_weights(cosine))

    return predict


def _votes(task: Task, labels: Indices, weights: Probabilities) -> Probabilities:
    scores = np.zeros((len(labels), task.classes))
    np.add.at(scores, (np.arange(len(labels))[:, None], labels), weights)
    return graph.shares(scores)


def spreading(task: Task, alpha: float) -> Predict:
    """Spread the labels over the graph; another image gets the mean of its neighbors.

    An image without a label starts from what a linear classifier says of it. With few labels the
    graph knows more than the classifier, with many the classifier does.
    """
    classifier = None
    prior = None
    if len(task.space.rows) <= graph.EXACT:  # a further table of [N, C]
        classifier = fit_linear(task, task.c, task.rows, task.labels)
        prior = classifier.probabilities(task.space, task.space.rows[:])
    found = graph.spread(task.graph, task.labeled, task.labels, task.classes, alpha, prior)

    def predict(query: Query) -> Probabilities:
        if query.indices is not None:
            return found[query.indices]
        unit = task.space.unit(query.rows)
        index, cosine = graph.nearest_images(task.space, unit, graph.NEIGHBORS)
        scores = graph.shares(np.einsum("nk,nkc->nc", graph.edge_weights(cosine), found[index]))
        if classifier:
            own = classifier.probabilities(task.space, query.rows)
            scores = alpha * scores + (1 - alpha) * graph.PRIOR * own
        return graph.shares(scores)

    return predict


HEADS: dict[str, tuple[Callable[[Task, float], Predict], tuple[float, ...]]] = {
    "linear": (linear, (1.0, 1e-3, 1e-2, 0.1)),
    "knn": (knn, (1, 3, 5, 10)),
    "spreading": (spreading, graph.ALPHAS),
}
"""The heads by name, each with its settings; the first one is used where none can be compared."""


class Score(NamedTuple):
    """The result of a cross-validation, in the order in which heads and settings are compared."""

    accuracy: float
    gain: float  # negative log-loss
    setting: float


def cross_validate(task: Task, name: str, seed: int = 0) -> Score | None:
    """Return the best setting of a head and its score; None if no image can be held out."""
    build, settings = HEADS[name]
    chosen = np.random.default_rng(seed).permutation(len(task.labels))[:MOST]
    folds = make_folds(task.labels[chosen])
    if not (folds >= 0).any():
        return None
    scores = []
    for setting in settings:
        shares = np.zeros(0)
        hits = np.zeros(0, bool)
        for fold in range(int(folds.max()) + 1):
            held, known = chosen[folds == fold], chosen[folds != fold]
            query = Query(task.rows[held], task.labeled[held])
            found, truth = build(task.part(known), setting)(query), task.labels[held]
            shares = np.append(shares, found[np.arange(len(held)), truth])
            hits = np.append(hits, found.argmax(axis=1) == truth)
        gain = float(np.log(np.maximum(shares, 1e-6)).mean())
        scores.append(Score(float(hits.mean()), gain, setting))
    return max(scores)


def make_folds(labels: Indices) -> Indices:
    """Return the fold of each label, spread evenly over the classes.

    The one label of a class is never held out, because nothing would be left of the class: -1.
    """
    folds = np.full(len(labels), -1)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if len(own) > 1:
            folds[own] = np.arange(len(own)) % FOLDS
    return folds


def distill(task: Task, predict: Predict, seed: int = 0) -> Linear:
    """Fit a linear classifier to what a head predicts for the training images.

    An image counts by how certain its label is: 1 - entropy / log C. Given labels count fully.
    """
    total = len(task.space.rows)
    chosen = np.random.default_rng(seed).permutation(total)[:MOST_DISTILLED]
    chosen = np.union1d(chosen, task.labeled)
    rows = np.asarray(task.space.rows[chosen])
    found = predict(Query(rows, chosen))
    entropy = -(found * np.log(np.maximum(found, 1e-12))).sum(axis=1)
    labels, weights = found.argmax(axis=1), 1 - entropy / np.log(task.classes)
    given = np.searchsorted(chosen, task.labeled)
    labels[given], weights[given] = task.labels, 1.0
    return fit_linear(task, DISTILLED_C, rows, labels, np.maximum(weights, 0))
