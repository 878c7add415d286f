"""One call from a store to batches, for programs that want the data and not the training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipelines.convert.ensure import ensure_store
from pipelines.loader.loader import Loader
from pipelines.sampling.order import Order
from pipelines.sampling.split import make_split
from pipelines.store.store import Store
from pipelines.views import default_recipes

WEAK_AND_STRONG = {"weak": "weak", "strong": "strong"}


def open_loader(
    store: Store | str | os.PathLike[str],
    *,
    labels: int | str = "all",
    batch: int = 64,
    ratio: int = 7,
    seed: int = 0,
    views: Mapping[str, str] = WEAK_AND_STRONG,
    size: int | None = None,
    flip: bool | None = None,
    padding: int | None = None,
    **options: Any,
) -> Loader:
    """Open a store (or a path, or the name of a standard dataset) as a loader of batches.

    What is left out is the dataset's own; `options` go to `Loader` (reader, device, threads…).
    """
    found = store if isinstance(store, Store) else ensure_store(store)
    info = found.splits["train"]
    stored = (info.height, info.width)
    made = default_recipes(found.name, stored, size=size, flip=flip, padding=padding)
    split = make_split(found.labels("train"), found.classes, labels_wanted=labels, seed=seed)
    order = Order(seed, len(split.labeled), len(split.unlabeled), batch, ratio * batch)
    return Loader(found, split, order, views=views, recipes=made, seed=seed, **options)
