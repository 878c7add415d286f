"""From a configuration to its data: store, split, order and recipes; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastssl import models, plugins
from fastssl.config.resolve import ResolvedConfig
from fastssl.config.schema import RunConfig
from fastssl.distributed.collectives import Ranks
from fastssl.errors import ConfigError
from fastssl.version import __version__
from pipelines.convert.ensure import ensure_store
from pipelines.datasets import DATASETS
from pipelines.sampling.order import Order, check_divisible
from pipelines.sampling.rng import permutation
from pipelines.sampling.split import Split, make_split
from pipelines.sources import Source
from pipelines.store.manifest import NAME, digest
from pipelines.store.store import Store, default_place, open_store
from pipelines.views import Recipe, default_recipes
from pipelines.views.normalize import Triple


def find_store(resolved: ResolvedConfig) -> Store:
    """Open the store that a configuration means; `digits` converts itself."""
    config = resolved.config
    if not config.store and config.data not in DATASETS and plugins.is_plugin("data", config.data):
        return ensure_plugin_store(config.data)
    return ensure_store(config.store or config.data)


def ensure_plugin_store(name: str) -> Store:
    """Open the store of a dataset from a file or an entry point; convert it at first use."""
    from pipelines.convert import convert  # not needed, and slow to import, for a finished store

    source = plugins.load("data", name)()
    if not isinstance(source, Source):
        raise ConfigError(f"{name} returned a {type(source).__name__}", "return a pipelines Source")
    place = default_place(source.name)
    if not (place / NAME).exists():
        convert(source, place, wait=True)
    return open_store(place)


def input_hashes(resolved: ResolvedConfig, store: Store) -> dict[str, str]:
    """Return what decides the result of a run beside its configuration, by name."""
    hashes = plugins.file_hashes(resolved.as_dict())
    weights = weights_file(resolved.config)
    if weights and weights.is_file():  # needed at the start only; a resumed run may lack it
        hashes["pretrained"] = digest(weights)
    return {"store": store.fingerprint, "fastssl": __version__, **hashes}


def weights_file(config: RunConfig) -> Path | None:
    """Return the file with the weights that a run starts from, if `pretrained` names one."""
    if not isinstance(config.pretrained, str):
        return None
    path = Path(config.pretrained)
    return path / "checkpoints" / "best.ckpt" if path.is_dir() else path


def changed_inputs(saved: dict[str, str], hashes: dict[str, str], store: Store) -> list[str]:
    """Return the names of inputs whose hash is not the one that a run has saved."""
    if store.matches(saved["store"]):  # a run of 0.1.0 has saved another kind of fingerprint
        hashes = {**hashes, "store": saved["store"]}
    if "pretrained" in saved:
        hashes = {"pretrained": saved["pretrained"], **hashes}
    return [name for name in saved if saved[name] != hashes.get(name)]


def view_recipes(resolved: ResolvedConfig, store: Store) -> dict[str, Recipe]:
    """Return the weak and the strong recipe for a store's images."""
    config = resolved.config
    info = store.splits["train"]
    return default_recipes(
        config.data,
        (info.height, info.width),
        size=config.image_size or own_size(config, store),
        flip=config.flip,
        padding=config.padding,
        ops=config.augment_ops,
        augment_first=config.augment_first,
    )


def own_size(config: RunConfig, store: Store) -> int | None:
    """Return the size of the pretrained model's inputs, if the images of the store have it."""
    inputs = models.own_inputs(config.model) if config.pretrained else None
    sides = [side for info in store.splits.values() for side in (info.height, info.width)]
    return inputs.size[0] if inputs and inputs.size[0] <= min(sides) else None


def normalization(config: RunConfig, store: Store) -> tuple[Triple, Triple]:
    """Return mean and deviation of the network's inputs; `auto` is the store's by now."""
    chosen = [config.mean, config.std]
    mean, std = (None if value == "auto" else value for value in chosen)
    return _triple(mean or store.mean), _triple(std or store.std)


def _triple(values: Sequence[float]) -> Triple:
    red, green, blue = values
    return red, green, blue


def check_true_labels(store: Store) -> None:
    """Raise if labels of training images were chosen by a model: nothing is measured on them."""
    if store.manifest.pseudo_labels:
        raise ConfigError(
            f"validation would measure on pseudo-labels: {store.manifest.pseudo_labels:,} training "
            f"labels of {store.path} were chosen by a model",
            "remove validation; a test set, made by convert --test-list, holds true labels",
        )


def images_for_statistics(
    config: RunConfig, unlabeled: npt.NDArray[np.int64], ranks: Ranks
) -> npt.NDArray[np.int64]:
    """Return this rank's share of random unlabeled images, whole batches of equal size.

    All ranks together have the batches that a single process has if eval_batch divides by their
    number. A last, smaller batch would count as much as a whole one.
    """
    own = max(1, config.eval_batch // ranks.world)
    batch = own * ranks.world
    count = min(config.bn_recompute, len(unlabeled)) // batch * batch
    order = permutation(config.seed, "bnimages", 0, len(unlabeled))[:count]
    return unlabeled[order].reshape(-1, ranks.world, own)[:, ranks.rank].reshape(-1)


def make_data(resolved: ResolvedConfig, store: Store, world: int) -> tuple[Split, Order]:
    """Choose the labeled images and the order in which steps see all of them."""
    config = resolved.config
    labels = store.labels("train")
    everything = resolved.algorithm.labeled == "all"
    held = config.validation if config.validation < 1 else int(config.validation)
    split = make_split(
        labels,
        store.classes,
        class_names=store.class_names,
        labels_wanted="all" if everything else config.labels,
        seed=config.seed if config.split_seed is None else config.split_seed,
        include_labeled=config.include_labeled,
        imbalance=1.0 if everything else config.imbalance,
        unlabeled_imbalance=config.unlabeled_imbalance,
        validation=held,
        index_file=Path(config.label_file) if config.label_file and not everything else None,
    )
    ratio = config.ratio or resolved.algorithm.ratio
    unlabeled_batch = config.batch * ratio if resolved.algorithm.unlabeled else 0
    check_divisible(config.batch, world, config.accumulate)
    unlabeled = len(split.unlabeled) if resolved.algorithm.unlabeled else 0
    if config.supervised_steps and world > 1 and resolved.algorithm.heads:
        # DDP's static_graph takes the parameters of the first step for those of all steps.
        raise ConfigError(
            f"supervised_steps is {config.supervised_steps} over {world} ranks, and the extra "
            f"heads of {resolved.algorithm.name} get no gradient in these steps",
            "type supervised_steps=0, or start one process",
        )
    sizes = len(split.labeled), unlabeled, config.batch, unlabeled_batch
    return split, Order(config.seed, *sizes, labeled_only=config.supervised_steps)
