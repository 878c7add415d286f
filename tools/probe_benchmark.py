"""Probe a store with random and with chosen labels, or measure the pass over its features.

    python tools/probe_benchmark.py STORE WEIGHTS             # writes tools/results/probe.json
    python tools/probe_benchmark.py STORE WEIGHTS --rates     # writes tools/results/features.json

STORE holds labeled images, WEIGHTS is a file that `pretrained=` takes. The first form compares
random labels, equally many of each class, with as many images chosen by `choose`, whose true
labels are then used. The second one compares the pass with the usual loop (Pillow, torchvision's
transforms, one image at a time) and with the network alone on a batch in memory.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastssl.engine.build_data import find_store, make_data
from fastssl.models.classifier import features_of
from fastssl.probing import graph, heads
from fastssl.probing.choose import open_network, typical
from fastssl.probing.features import CPU_BATCH, FOLDER, FrozenNetwork, compute_features
from fastssl.probing.heads import Predict, Query, Task
from fastssl.probing.probe import configure, measure
from fastssl.profiling.measure import interleave, make_record, rate, save
from pipelines.store.store import Store, open_store

RESULTS = Path(__file__).resolve().parent / "results"
COUNTS = (1, 5, 20)  # labels per class
SEEDS = 5  # draws of labels


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("weights")
    parser.add_argument("--model", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--note", default="", help="what a reader of the record must know")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--images", type=int, default=320, help="of a repetition of --rates")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    logging.getLogger("fastssl").setLevel(logging.WARNING)
    settings = {"model": options.model, "pretrained": options.weights}
    resolved = configure(options.store, settings)
    store = find_store(resolved)
    network = open_network(resolved, store)
    if options.rates:
        record = rates(network, store, options.images, options.repetitions)
    else:
        record = accuracies(network, store, settings)
    print(save({**record, "note": options.note}, RESULTS))


def accuracies(network: FrozenNetwork, store: Store, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the record of all heads, numbers of labels and seeds."""
    rows = compute_features(network, store)
    space = graph.Space.of(rows["train"])
    near = graph.neighbor_graph(space)
    truth = store.labels("train")
    queries = {"test": (Query(np.asarray(rows["test"])), torch.from_numpy(store.labels("test")))}
    results = []
    for count in COUNTS:
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(SEEDS):
            given = {**settings, "labels": f"{count}/class", "seed": seed}
            split, _ = make_data(configure(str(store.path), given), store, 1)
            chosen = typical(space, np.arange(len(truth)), count * store.classes, seed)
            for name, labeled in (("random", split.labeled), ("chosen", np.sort(chosen))):
                task = Task(space, near, labeled, truth[labeled], store.classes)
                for head, row in heads_of(task, queries, seed).items():
                    found.setdefault(f"{count} per class, {name}, {head}", []).append(row)
        results += [summary(name, lines) for name, lines in found.items()]
    about = {"model": settings["model"], "train": len(truth), "test": len(queries["test"][1])}
    return make_record("probe", {**about, "classes": store.classes}, results, {})


def heads_of(task: Task, queries: dict[str, Any], seed: int) -> dict[str, dict[str, float]]:
    """Return accuracy, ECE and seconds of the heads of a task."""
    predict: dict[str, Predict] = {}
    found = {}

    def add(name: str, fit: Callable[[], Predict]) -> None:
        began = time.monotonic()
        predict[name] = fit()
        metrics = measure(predict[name], queries)
        found[name] = {
            "accuracy": round(100 - metrics["error"], 2),
            "ece": round(metrics["ece"], 4),
            "seconds": round(time.monotonic() - began, 2),
            "classes": len(set(task.labels.tolist())),
        }

    def setting(name: str) -> float:
        score = heads.cross_validate(task, name, seed)
        return score.setting if score else heads.HEADS[name][1][0]

    def linear() -> Predict:
        nonlocal task
        task = replace(task, c=setting("linear"))  # labels spread from this classifier
        return heads.linear(task, task.c)

    def distilled() -> Predict:
        fitted = heads.distill(task, predict["spreading"], seed)
        return lambda query: fitted.probabilities(task.space, query.rows)

    add("linear", linear)
    add("spreading", lambda: heads.spreading(task, setting("spreading")))
    add("spreading as linear", distilled)
    return found


def summary(name: str, lines: list[dict[str, float]]) -> dict[str, Any]:
    """Put the seeds of one row into one line."""
    columns = {key: [line[key] for line in lines] for key in lines[0]}
    accuracy = columns.pop("accuracy")
    return {
        "name": name,
        "rate": statistics.median(accuracy),
        "unit": "% accuracy on the test images, median over seeds",
        "spread": round(max(accuracy) - min(accuracy), 2),
        "mean": round(statistics.mean(accuracy), 2),
        "accuracy": accuracy,
        **columns,
    }


def rates(network: FrozenNetwork, store: Store, images: int, repetitions: int) -> dict[str, Any]:
    """Return the record of the pass, the usual loop and the network alone, in turns."""
    paths = store.source_paths("train")
    files = [paths[index % len(paths)] for index in range(images)]
    batch = torch.randn(CPU_BATCH, 3, *network.size).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def plain_loop() -> int:
        from PIL import Image
        from torchvision import transforms

        prepare = transforms.Compose(
            [
                transforms.Resize(network.size, transforms.InterpolationMode.BICUBIC),
                transforms.ToTensor(),
                transforms.Normalize(network.mean, network.std),
            ]
        )
        for path in files:
            with Image.open(path) as image:
                features_of(network.model, prepare(image.convert("RGB"))[None])
        return len(files)

    @torch.inference_mode()
    def alone() -> int:
        for _ in range(images // CPU_BATCH):
            features_of(network.model, batch)
        return images // CPU_BATCH * CPU_BATCH

    with tempfile.TemporaryDirectory(prefix="fastssl-features-") as folder:
        place = Path(folder) / "store"
        shutil.copytree(store.path, place, ignore=shutil.ignore_patterns(FOLDER))

        def whole_pass() -> int:
            shutil.rmtree(place / FOLDER, ignore_errors=True)
            return sum(len(rows) for rows in compute_features(network, open_store(place)).values())

        cases = {"features": whole_pass, "plain loop": plain_loop, "network alone": alone}
        turns = {name: (lambda work=work: rate(work)) for name, work in cases.items()}
        measured = interleave(turns, repetitions)
    ours = measured["features"].median
    return make_record(
        "features",
        {"model": network.config.model, "size": network.size[0], "batch": CPU_BATCH},
        [case.row(name, "images/s", busy=round(case.busy, 2)) for name, case in measured.items()],
        {name: round(ours / case.median, 3) for name, case in measured.items()},
    )


if __name__ == "__main__":
    main()
