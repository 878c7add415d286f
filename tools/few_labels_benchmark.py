"""Compare probes with trainings that start from the same pretrained weights, or from none.

    fastssl convert photos/ilsvrc/train data/ten --test photos/ilsvrc/val --size 128
    python tools/few_labels_benchmark.py data/ten WEIGHTS

WEIGHTS is a file that `pretrained=` takes. With 1, 5 and 20 labels per class: the heads of
`tools/probe_benchmark.py`, FlexMatch from random weights, FlexMatch from the probe of the same
labels, and supervised training from WEIGHTS. Every training has the same number of steps and is
evaluated once, at its end: no checkpoint is chosen by the test images. A program that was stopped
goes on where it was (`runs/few-labels`). The record is tools/results/few-labels.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fastssl
from fastssl.engine.build_data import find_store
from fastssl.probing.choose import open_network
from fastssl.probing.probe import configure
from fastssl.profiling.measure import save
from tools.probe_benchmark import RESULTS, accuracies, summary

SEEDS = {1: 1, 5: 3, 20: 1}  # labels per class: draws of labels that are trained on
RUNS = Path("runs") / "few-labels"
NAMES = ("probe, written", "FlexMatch from scratch", "FlexMatch from the probe", "supervised")
# True of classes of ImageNet alone, whose names are WordNet's, and of weights trained on them.
SEEN = "The classes are of ImageNet, on which the weights were trained: accuracies are optimistic."


def main() -> None:
    """Train what is missing and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("weights")
    parser.add_argument("--model", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--ratio", type=int, default=3)
    parser.add_argument("--note", default="", help="what else a reader of the record must know")
    options = parser.parse_args()
    logging.getLogger("fastssl").setLevel(logging.WARNING)
    resolved = configure(options.store, {"model": options.model, "pretrained": options.weights})
    store = find_store(resolved)
    settings = {"model": options.model, "pretrained": options.weights}
    record = accuracies(open_network(resolved, store), store, settings)
    shared = {"steps": options.steps, "batch": options.batch, "ratio": options.ratio}
    for count, seeds in SEEDS.items():
        lines: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
        for seed in range(seeds):
            given = {"labels": f"{count}/class", "seed": seed}
            for name, row in rows(options, {**shared, **given}).items():
                lines[name].append(row)
                print(f"{count} per class, {name}, seed {seed}: {row}", flush=True)
        record["results"] += [
            summary(f"{count} per class, random, {name}", found) for name, found in lines.items()
        ]
    size = store.splits["train"].height
    record |= {"what": "few-labels", "settings": {**record["settings"], **shared, "size": size}}
    print(save({**record, "note": note(store.class_names, options.note)}, RESULTS))


def note(class_names: Sequence[str], given: str) -> str:
    """Return what a reader of the record must know, whatever the user adds."""
    of_imagenet = all(re.fullmatch(r"n\d{8}", name) for name in class_names)
    return " ".join(filter(None, [SEEN if of_imagenet else "", given]))


def rows(options: argparse.Namespace, given: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return accuracy and seconds of the probe and of the trainings with the same labels."""
    place = RUNS / f"{given['labels'].replace('/', '-')}-s{given['seed']}"
    network = {"model": options.model, "store": options.store}
    probe = place / "probe"
    if not (probe / "probe.json").exists():
        labels = {key: given[key] for key in ("labels", "seed")}
        fastssl.probe(
            options.store, out=probe, model=options.model, pretrained=options.weights, **labels
        )
    common = {**network, **given, **paced(given["steps"])}
    # The classifier of the probe is kept; a classifier of class means would be a step back.
    kept = {"pretrained": str(probe), "head_init": "default", "temperature": 1.0}
    trainings: dict[str, tuple[str, dict[str, Any]]] = {
        "FlexMatch from scratch": ("own", {}),
        "FlexMatch from the probe": ("own_pretrained", kept),
        "supervised": (
            "own_pretrained",
            {"algorithm": "supervised", "pretrained": options.weights},
        ),
    }
    found = {"probe, written": row(probe)}
    for name, (config, settings) in trainings.items():
        out = place / name.replace(" ", "-")
        fastssl.train(config, out=out, resume=True, **{**common, **settings})
        found[name] = row(out)
    return found


def paced(steps: int) -> dict[str, Any]:
    """Return the settings that follow from the number of steps."""
    once = {"eval_every": steps, "eval_every_late": steps, "checkpoint_every": max(steps // 4, 1)}
    return {**once, "warmup": steps // 10, "compile": "off", "tensorboard": False}


def row(run: Path) -> dict[str, float]:
    """Return what the summary of a run says."""
    found = json.loads((run / "summary.json").read_text())
    return {"accuracy": round(100 - found["last_error"], 2), "seconds": round(found["seconds"], 1)}


if __name__ == "__main__":
    main()
