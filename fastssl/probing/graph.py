"""The nearest neighbors of images among features, and labels spread over their graph."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]  # [n, C]
Indices = npt.NDArray[np.int64]

NEIGHBORS = 10
POWER = 3  # of a cosine, for the weight of an edge: the nearest neighbors count most
ALPHAS = (0.9, 0.5)  # share of its label that an image takes from its neighbors
ERROR = 1e-5  # of the iteration, at its end; it falls by this share in each step
PRIOR = 0.3  # weight of what a classifier says of an image, where 1 is that of a label
EXACT = 100_000  # images up to which all pairs are compared
GROUP = 1_000  # images of a cluster in an approximate graph
NEAR = 5  # clusters in which the neighbors of an image are searched then
SAMPLE = 100_000  # images that clusters are fitted to
CHUNK = 8_192  # rows in memory at a time
FEW = 20_000  # images up to which k-means sees all of them in every step


@dataclass(frozen=True, slots=True)
class Selection:
    """Some rows of a table, in a given order, that are read only where they are indexed."""

    table: Floats  # [M, F], mapped from a file
    indices: Indices  # [N] of rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Return N, F."""
        return len(self.indices), *self.table.shape[1:]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, chosen: slice | Indices) -> Floats:
        return self.table[self.indices[chosen]]


@dataclass(frozen=True, slots=True)
class Space:
    """Features, standardized by the mean and deviation of a store's training images."""

    rows: Floats | Selection  # [N, F] as computed, mapped from a file
    mean: npt.NDArray[np.float64]  # [F]
    std: npt.NDArray[np.float64]  # [F], 1 for a feature that never changes

    @classmethod
    def of(cls, rows: Floats | Selection) -> Space:
        """Measure features [N, F], a part of them at a time."""
        parts = _parts(rows)
        mean = sum(rows[part].sum(axis=0, dtype=np.float64) for part in parts) / len(rows)
        squares = sum(np.square(rows[part] - mean).sum(axis=0) for part in parts)
        std = np.sqrt(squares / len(rows))
        return cls(rows, mean, np.where(std > 1e-12 * np.abs(mean), std, 1.0))

    def standardized(self, rows: Floats | Selection) -> Floats:
        """Return features [n, F] with mean 0 and deviation 1 over the training images."""
        found = np.empty(rows.shape, np.float32)
        for part in _parts(rows):  # the differences are float64
            found[part] = (rows[part] - self.mean) / self.std
        return found

    def unit(self, rows: Floats | Selection) -> Floats:
        """Return standardized features of length 1: their products are cosines."""
        found = self.standardized(rows)
        for part in _parts(found):
            length = np.linalg.norm(found[part], axis=1, keepdims=True)
            found[part] /= np.maximum(length, 1e-12)
        return found

    def clusters(self, count: int, seed: int, indices: Indices | None = None) -> tuple[Any, Any]:
        """Return the centers [count, F] of k-means and the cluster of each image."""
        from sklearn.cluster import KMeans, MiniBatchKMeans

        chosen = np.arange(len(self.rows)) if indices is None else indices
        sample = np.random.default_rng(seed).permutation(chosen)[:SAMPLE]
        kind = KMeans if len(sample) <= FEW else MiniBatchKMeans
        fitted = kind(count, n_init=3, random_state=seed).fit(self.unit(self.rows[np.sort(sample)]))
        labels = [fitted.predict(self.unit(self.rows[chosen[part]])) for part in _parts(chosen)]
        return fitted.cluster_centers_, np.concatenate(labels)


def grouped(clusters: Indices, count: int) -> list[Indices]:
    """Return the images of each of `count` clusters, in ascending order."""
    order = np.argsort(clusters, kind="stable")
    return np.split(order, np.searchsorted(clusters[order], np.arange(1, count)))


def _parts(rows: Sized) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, len(rows), CHUNK)]


def nearest(known: Floats, queries: Floats, count: int) -> tuple[Indices, Floats]:
    """Return the rows of `known` that are nearest to each query, and their cosines: [m, count].

    Both hold features of length 1.
    """
    from sklearn.neighbors import NearestNeighbors

    # Distances of unit vectors order them as cosines do, and sklearn finds them faster.
    found = NearestNeighbors(n_neighbors=min(count, len(known)), algorithm="brute").fit(known)
    distance, index = found.kneighbors(queries)
    return index, (1 - distance**2 / 2).astype(np.float32)


def nearest_images(space: Space, queries: Floats, count: int) -> tuple[Indices, Floats]:
    """Return the training images nearest to each query, and their cosines, a part at a time."""
    found: list[tuple[Indices, Floats]] = []
    for start in range(0, len(space.rows), EXACT):
        index, cosine = nearest(space.unit(space.rows[start : start + EXACT]), queries, count)
        found.append((index + start, cosine))
    index, cosine = (np.concatenate(columns, axis=1) for columns in zip(*found, strict=True))
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(cosine, order, axis=1)


def neighbor_graph(space: Space, seed: int = 0) -> sparse.csr_array:
    """Return the symmetric weights [N, N] of the edges between near images, normalized.

    Above 100,000 images the neighbors are searched in the clusters around an image only.
    """
    total = len(space.rows)
    everything = np.arange(total)
    if total <= EXACT:
        rows = space.unit(space.rows)
        pairs = [(everything, everything, *nearest(rows, rows, NEIGHBORS + 1))]
    else:
        pairs = list(_near_clusters(space, seed))
    edges = [_edges(*one) for one in pairs]
    source, target, weight = (np.concatenate(column) for column in zip(*edges, strict=True))
    found = sparse.csr_array((weight, (source, target)), shape=(total, total))
    return normalized(found.maximum(found.T))


def _near_clusters(space: Space, seed: int) -> Any:
    """Yield the images of each cluster, those around it, and the neighbors among the latter."""
    centers, labels = space.clusters(max(len(space.rows) // GROUP, 1), seed)
    members = grouped(labels, len(centers))
    around = nearest(centers, centers, NEAR)[0]
    for number, own in enumerate(members):
        if len(own):
            others = np.concatenate([members[near] for near in around[number]])
            known, queries = space.unit(space.rows[others]), space.unit(space.rows[own])
            yield own, others, *nearest(known, queries, NEIGHBORS + 1)


def _edges(own: Indices, others: Indices, index: Indices, cosine: Floats) -> tuple[Any, Any, Any]:
    """Return the edges from images to their neighbors, without those from an image to itself."""
    source, target = np.repeat(own, index.shape[1]), others[index].ravel()
    kept = source != target
    return source[kept], target[kept], edge_weights(cosine.ravel()[kept])


def edge_weights(cosine: Any) -> Probabilities:
    """Return the weights of edges between images with these cosines."""
    # Not 0 for an image that is near to none: its nearest neighbors are all that is known.
    found: Probabilities = np.clip(cosine, 1e-3, None).astype(np.float64) ** POWER
    return found


def normalized(weights: sparse.csr_array) -> sparse.csr_array:
    """Return D^-1/2 W D^-1/2 for symmetric weights W, with their sums D."""
    scale = np.maximum(weights.sum(axis=1), 1e-12) ** -0.5
    return sparse.csr_array(sparse.diags_array(scale) @ weights @ sparse.diags_array(scale))


def spread(
    graph: sparse.csr_array,
    labeled: Indices,
    labels: Indices,
    classes: int,
    alpha: float = ALPHAS[0],
    prior: Probabilities | None = None,
) -> Probabilities:
    """Return the class probabilities of all images, spread from the labeled ones.

    With the graph S and the labels Y, each class of which has the sum 1 however many labels it
    has, the result is F = (1 - a) (I - a S)^-1 Y, with its rows divided by their sums. A `prior`
    [N, C] stands in Y for the labels of the other images, with a lower weight.
    Paper: https://proceedings.neurips.cc/paper/2003/hash/87682805257e619d49b8e0dfdc14affa-Abstract.html
    """
    found = np.zeros((graph.shape[0], classes)) if prior is None else PRIOR * prior
    found[labeled] = 0
    found[labeled, labels] = 1
    total = found.sum(axis=0)
    known = np.bincount(labels, minlength=classes) > 0
    found *= known * (1 - alpha) / np.maximum(total, 1e-12)
    # A third table [N, C] only for a prior: without it, Y is its entries of labeled images.
    given, of_prior = found[labeled, labels], None if prior is None else found.copy()
    for _ in range(math.ceil(math.log(ERROR) / math.log(alpha))):
        found = graph @ found
        found *= alpha
        if of_prior is None:
            found[labeled, labels] += given
        else:
            found += of_prior
    # An image that no label reaches has equal shares of the classes that have a label.
    found += 1e-15 * known
    found /= found.sum(axis=1, keepdims=True)
    return found


def shares(scores: Probabilities) -> Probabilities:
    """Divide rows by their sums."""
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))
