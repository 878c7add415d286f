"""The verb `choose`: which images to label first.

Without a model, the most typical image of each cluster of features, as TypiClust does
(https://arxiv.org/abs/2202.02794). With a run, its least certain images, spread over clusters.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastssl.config.resolve import ResolvedConfig
from fastssl.engine import devices
from fastssl.engine.build import build_model, load_weights, with_normalization
from fastssl.engine.build_data import find_store, normalization, view_recipes
from fastssl.errors import ConfigError
from fastssl.inference.predictor import Predictor, probabilities
from fastssl.inference.pseudo_label import unlabeled
from fastssl.models.classifier import classifier_of
from fastssl.probing import label_studio, to_label
from fastssl.probing.features import FrozenNetwork, compute_features
from fastssl.probing.graph import CHUNK, SAMPLE, Floats, Indices, Space, grouped, nearest
from fastssl.probing.probe import configure, report_weights
from fastssl.tracking.console import messages
from pipelines.convert.ensure import ensure_store
from pipelines.store.store import Store

NEIGHBORS = 20  # images that say how typical an image is
MOST_CLUSTERS = 500  # unless more images are wanted
MOST_MEMBERS = 5_000  # of a cluster that are compared: those nearest to its center
SHORTLIST = 10  # uncertain images for each one that is chosen


def choose(
    store: str,
    count: int,
    *,
    per_class: bool = False,
    out: Path | None = None,
    form: str = "csv",
    run: Path | None = None,
    overrides: list[str] | dict[str, Any] | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Write the images to label and a sheet to look at; return what was written."""
    out = to_label.file_of(form, out)
    if run is not None and overrides:
        raise ConfigError("--run is given with settings of a model", "remove one of the two")
    with messages():
        if run is not None:
            found = ensure_store(store)
            model = Predictor(run, trust_code=trust_code)
            network, seed = network_of_run(model), model.resolved.config.seed
            open_images = unlabeled(model, found)
        else:
            resolved = configure(store, overrides, trust_code=trust_code)
            found, seed = find_store(resolved), resolved.config.seed
            network = open_network(resolved, found)
            open_images = np.flatnonzero(found.labels("train") < 0)
        files = label_studio.local_files(found) if form == "labelstudio" else None
        to_label.check_out(found, out)
        total = checked_count(found, len(open_images), count, per_class)
        rows = compute_features(network, found)["train"]
        space = Space.of(rows)
        if run is not None:
            uncertainty = 1 - margins(network, rows, open_images)
            chosen = uncertain(space, open_images, uncertainty, total, seed)
        else:
            chosen = typical(space, open_images, total, seed)
    return to_label.write(found, chosen, out, files)


def checked_count(store: Store, left: int, count: int, per_class: bool) -> int:
    """Return how many images to choose, after checking that there are as many."""
    if per_class and not store.classes:
        raise ConfigError(f"the classes of {store.path} are not known", "remove --per-class")
    total, limit = (count * store.classes if per_class else count), min(left, SAMPLE)
    if not 1 <= total <= limit:
        bound = f"{left:,} of {store.path} have no label"
        if total > limit == SAMPLE:  # k-means finds no more clusters than it sees images
            bound = f"{SAMPLE:,} are the most that can be chosen at once"
        most = limit // store.classes if per_class else limit
        fix = f"use -n 1 to {most}" if most else "remove --per-class"
        raise ConfigError(
            f"{total:,} images are asked for, and {bound}",
            fix if left else "every image has a label already",
        )
    return total


def open_network(resolved: ResolvedConfig, store: Store) -> FrozenNetwork:
    """Return the network of a configuration; the store need not have a label."""
    device = devices.choose(resolved.config)
    resolved = with_normalization(resolved)
    config, size = resolved.config, view_recipes(resolved, store)["weak"].size
    report_weights(config, store, size)
    model = build_model(resolved, max(store.classes, 2), device, size)
    load_weights(model, config, size)
    return FrozenNetwork(
        model.eval(),
        config,
        device,
        size,
        *normalization(config, store),
    )


def network_of_run(model: Predictor) -> FrozenNetwork:
    """Return the network of a run with the preprocessing of its training."""
    config, expected = model.resolved.config, model.preprocessing
    return FrozenNetwork(
        model.model,
        config,
        model.device,
        expected.size,
        expected.mean,
        expected.std,
    )


def typical(space: Space, open_images: Indices, count: int, seed: int) -> Indices:
    """Return the most typical image of each cluster, those of clusters without labels first.

    An image is typical if its nearest neighbors in the cluster are near. Among clusters with
    equally many labels the largest comes first.
    """
    total = len(space.rows)
    is_open = np.zeros(total, bool)
    is_open[open_images] = True
    wanted = count + int((~is_open).sum())
    number = min(wanted, max(count, MOST_CLUSTERS), total)
    centers, clusters = space.clusters(number, seed)
    queue: list[tuple[int, int, int]] = []  # labels, -size, cluster
    ranked: dict[int, list[int]] = {}  # images of a cluster, the most typical one last
    for cluster, members in enumerate(grouped(clusters, number)):
        if is_open[members].any():
            order = members[np.argsort(typicality(space, members, centers[cluster]), kind="stable")]
            ranked[cluster] = order[is_open[order]].tolist()
            labels = int((~is_open[members]).sum())
            heapq.heappush(queue, (labels, -len(members), cluster))
    chosen: list[int] = []
    while len(chosen) < count:
        labels, size, cluster = heapq.heappop(queue)
        chosen.append(ranked[cluster].pop())
        if ranked[cluster]:
            heapq.heappush(queue, (labels + 1, size, cluster))
    return np.array(chosen, np.int64)


def typicality(space: Space, members: Indices, center: Floats) -> npt.NDArray[np.float64]:
    """Return the mean cosine of each image of a cluster to its nearest neighbors there."""
    parts = [members[start : start + CHUNK] for start in range(0, len(members), CHUNK)]
    near = np.concatenate([space.unit(space.rows[part]) @ center for part in parts])
    found = np.full(len(members), -2.0)  # less than any cosine
    compared = np.argsort(-near, kind="stable")[:MOST_MEMBERS]
    rows = space.unit(space.rows[members[compared]])
    cosine = nearest(rows, rows, NEIGHBORS + 1)[1]
    found[compared] = cosine[:, 1:].mean(axis=1) if len(rows) > 1 else 0.0
    return found


def margins(network: FrozenNetwork, rows: Floats, images: Indices) -> npt.NDArray[np.float64]:
    """Return by how much the most probable class of each image leads the second one."""
    import torch

    classifier = classifier_of(network.model, "choose --run")
    found = []
    for start in range(0, len(images), CHUNK):
        part = torch.from_numpy(np.array(rows[images[start : start + CHUNK]]))
        with torch.inference_mode():
            logits = classifier(part.to(classifier.weight)).float().cpu().numpy()
        top = np.sort(probabilities(logits), axis=1)
        found.append(top[:, -1] - top[:, -2])
    return np.concatenate(found)


def uncertain(
    space: Space,
    open_images: Indices,
    uncertainty: npt.NDArray[np.float64],
    count: int,
    seed: int,
) -> Indices:
    """Return the least certain image of each cluster of the least certain images."""
    order = np.argsort(-uncertainty, kind="stable")[: SHORTLIST * count]
    listed = open_images[order]  # the least certain first
    _, clusters = space.clusters(count, seed, listed)
    first = np.sort(np.unique(clusters, return_index=True)[1])
    rest = np.setdiff1d(np.arange(len(listed)), first)  # k-means may leave a cluster empty
    return np.asarray(listed[np.concatenate([first, rest])[:count]])
