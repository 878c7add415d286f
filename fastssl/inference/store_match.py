"""A store beside the run that is used on it: classes by name, and what to know about the images."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fastssl.errors import DataError, UserError
from fastssl.inference.predictor import Predictor
from pipelines.store.store import Store, default_place, open_store
from pipelines.text import listed


def match_labels(model: Predictor, store: Store, split: str) -> npt.NDArray[np.int64]:
    """Return the labels of a split as indices into the model's classes, -1 where there is none.

    Raise if an image has a class that the model does not know.
    """
    labels = store.labels(split)
    number_of = {name: number for number, name in enumerate(model.classes)}
    used = [store.class_names[label] for label in np.unique(labels[labels >= 0])]
    unknown = [name for name in used if name not in number_of]
    if unknown:
        raise DataError(
            f"{store.path} has classes that the model does not know: {listed(unknown)}",
            f"give a store of the model's classes: {listed(model.classes)}",
        )
    numbers = np.array([number_of.get(name, -1) for name in store.class_names])
    return np.where(labels >= 0, numbers[labels], -1)


def notes_on(model: Predictor, store: Store, split: str) -> list[str]:
    """Return what a reader of results on this store must know, if it is not the run's own."""
    if model.trained_on(store):
        return []
    notes = [
        f"{store.path} is not the store that the model was trained on "
        f"(fingerprint {store.fingerprint[:12]}, the run's is {model.store_fingerprint[:12]})"
    ]
    notes += resize_notes(model, store)
    own = own_store(model)
    if own is None:
        notes.append(
            f"its {split} images may have been trained on: the store of the run is gone, so this "
            "cannot be checked"
        )
    elif seen := int(seen_in_training(own, store, split).sum()):
        total = store.splits[split].count
        notes.append(f"{seen:,} of its {total:,} {split} images are training images of the model")
    return notes


def resize_notes(model: Predictor, store: Store) -> list[str]:
    """Return a note if the images of a store were resized in another way than the model's."""
    found, expected = store.manifest, model.preprocessing
    pairs = [(found.resize, expected.resize), (found.interpolation, expected.interpolation)]
    others = [pair for pair in pairs if pair[0] != pair[1]]
    if not others:
        return []
    theirs, own = (" and ".join(names) for names in zip(*others, strict=True))
    return [f"the images of {store.path} were resized by {theirs}, the model's by {own}"]


def own_store(model: Predictor) -> Store | None:
    """Return the store that the run was trained on, or None if it is gone or has changed."""
    config = model.resolved.config
    try:
        found = open_store(config.store or default_place(config.data))
    except UserError:
        return None
    return found if model.trained_on(found) else None


def seen_in_training(own: Store, store: Store, split: str) -> npt.NDArray[np.bool_]:
    """Return for each image of a split whether `own` trains on it: same file or same bytes."""
    paths = {path for path in own.source_paths("train") if os.path.isabs(path)}
    known = own.records("train")[["crc", "size"]].tolist()
    index_of = {key: index for index, key in enumerate(known)}
    seen = np.array([path in paths for path in store.source_paths(split)])
    for index, key in enumerate(store.records(split)[["crc", "size"]].tolist()):
        # The checksum has 32 bits: among many images some agree by chance, so compare the bytes.
        if key in index_of:
            same = own.encoded("train", index_of[key]) == store.encoded(split, index)
            seen[index] |= same
    return seen
