"""Images and stores after every kind of accident: an answer or two lines, never a traceback."""

from __future__ import annotations

import io
import json
import random
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastssl.engine import checkpoint
from fastssl.errors import UserError
from pipelines.convert.images import BadImageError
from pipelines.convert.images import load as load_picture
from pipelines.store import index, manifest
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.faults.fuzzing import bounded, corrupted, seeds
from tests.runs import whole_content
from tests.small_stores import make_store

pytestmark = pytest.mark.faults


def test_images_through_the_decoder_of_convert(tmp_path, tally, times):
    count = tally("fuzzed images through convert's decoder")
    dice = random.Random(5)
    photos = seeds()
    for _ in range(times(40, 500)):
        name = dice.choice(sorted(photos))
        path = tmp_path / f"fuzzed.{name}"
        path.write_bytes(corrupted(photos[name], dice))
        with count, bounded():
            try:
                assert load_picture(str(path)).mode == "RGB"
            except BadImageError as error:
                assert "\n" not in str(error)


def test_images_through_predict(trained, tmp_path, tally, times):
    from fastssl.inference.predictor import Predictor

    count = tally("fuzzed images through predict")
    dice = random.Random(6)
    photos, paths = seeds(), []
    for number in range(times(40, 500)):
        name = dice.choice(sorted(photos))
        path = tmp_path / f"{number}.{name}"
        path.write_bytes(corrupted(photos[name], dice))
        paths.append(str(path))
    good = tmp_path / "good.png"
    good.write_bytes(photos["png"])
    answers = Predictor(trained, device="cpu").files([*paths, str(good)], batch=32)
    for path in paths:
        with count, bounded():
            found = next(answers)
            assert found.path == path
            assert (found.logits is None) == bool(found.reason)
    assert next(answers).logits is not None  # the bad ones did not take the good one with them


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    return make_store(folder / "small", count=24, size=8, formats=("dali",)).path


def changed(content: Any, dice: random.Random) -> Any:
    """Change one thing, anywhere in nested data."""
    if isinstance(content, dict) and content and ("kind" in content or dice.random() < 0.9):
        key = dice.choice(sorted(content))
        copy = dict(content)
        if dice.random() < 0.15:
            del copy[key]
        else:
            copy[key] = changed(content[key], dice)
        return copy
    if isinstance(content, list) and content and dice.random() < 0.7:
        place = dice.randrange(len(content))
        return [*content[:place], changed(content[place], dice), *content[place + 1 :]]
    odd = [None, -1, 0, 1e30, 10**40, "", "../../x", "\0", [], {}, [[]], True, float("nan"), "raw"]
    return dice.choice(odd)


def use(path: Path) -> None:
    """Do with a store what training and the verbs do."""
    from pipelines.readers import READERS

    store = open_store(path)
    for split in store.splits:
        store.labels(split)
        store.source_paths(split)
        READERS["resident"].open(store, split).read(np.arange(2), np.empty((2, 8, 8, 3), np.uint8))


def test_manifests_sealed_by_somebody_else(small, tmp_path, tally, times):
    count = tally("fuzzed manifests, sealed anew")
    store = shutil.copytree(small, tmp_path / "store")
    sound = json.loads((small / manifest.NAME).read_bytes())
    del sound["sha256"]
    dice = random.Random(7)
    for _ in range(times(60, 500)):
        (store / manifest.NAME).write_bytes(manifest.render(changed(sound, dice)))
        with count, bounded():
            try:
                use(store)
            except UserError as error:
                assert error.exit_code in (3, 5), error
            except (ValueError, IndexError) as error:
                assert "shape" in str(error), error  # of our own array, in `use`
            assert isinstance(verify(store).problems, list)


def test_indices_sealed_by_somebody_else(small, tmp_path, tally, times):
    count = tally("fuzzed shard indices, sealed anew")
    store = shutil.copytree(small, tmp_path / "store")
    content = json.loads((small / manifest.NAME).read_bytes())
    sound = np.load(small / "train.npy")
    rows = (small / index.NAME).read_bytes()
    dice = random.Random(8)
    for number in range(times(40, 300)):
        if number % 2:
            records = sound.copy()
            field = dice.choice(records.dtype.names)
            top = np.iinfo(records.dtype[field]).max
            records[field][dice.randrange(len(records))] = dice.choice([0, 1, top, top // 2])
            np.save(store / "train.npy", records)
        else:
            (store / index.NAME).write_bytes(corrupted(rows, dice))
        for name in ("train.npy", index.NAME):
            file = store / name
            content["files"][name] = {"size": file.stat().st_size, "sha256": manifest.digest(file)}
        (store / manifest.NAME).write_bytes(manifest.render(content))
        with count, bounded():
            try:
                use(store)
            except UserError as error:
                assert error.exit_code == 3, error
            assert isinstance(verify(store).problems, list)
        for name in ("train.npy", index.NAME):
            shutil.copy(small / name, store / name)


def test_checkpoints_made_by_somebody_else(tmp_path, tally, times):
    import torch

    count = tally("fuzzed checkpoints")
    content = whole_content(1, {"w": torch.zeros(3), "v": torch.ones(2)})
    body = bytes(checkpoint.pack(content))
    whole = zipfile.ZipFile(io.BytesIO(body))
    dice = random.Random(10)
    path = tmp_path / "step-00000001.ckpt"
    for number in range(times(60, 300)):
        data = corrupted(body, dice) if number % 2 else repacked(whole, dice)
        path.write_bytes(data)
        with count, bounded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of the pickle's version
            try:
                assert isinstance(checkpoint.read(path), dict)
            except UserError as error:
                assert error.exit_code == 3, error


def repacked(whole: zipfile.ZipFile, dice: random.Random) -> bytes:
    """Return a checkpoint's archive, sound but for the pickle in it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in whole.namelist():
            data = whole.read(name)
            archive.writestr(name, corrupted(data, dice) if name.endswith("data.pkl") else data)
    return made.getvalue()
