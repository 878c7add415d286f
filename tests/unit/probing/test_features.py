"""The cache of frozen features: complete or resumed, and one file for each set of weights."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fastssl.config.resolve import load
from fastssl.errors import DataError, ResourceError
from fastssl.models.classifier import features_of
from fastssl.probing import features
from fastssl.probing.choose import open_network
from fastssl.probing.features import compute_features
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.process_output import Listener

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(data, tmp_path):
    """Return a copy of the digits, which each test may write features into."""
    shutil.copytree(data / "digits", tmp_path / "digits")
    return open_store(tmp_path / "digits")


def backbone(store, **settings):
    given = {"model": "wrn-10-1", "threads": 1, "loader_threads": 1, **settings}
    return open_network(load("digits", given), store)


def files(store):
    return sorted(path.suffix for path in (store.path / "features").iterdir())


def test_features_are_those_of_the_network_in_evaluation(store):
    network = backbone(store)
    found = compute_features(network, store)
    assert found["train"].shape == (1437, 64) and found["test"].shape == (360, 64)
    for split, index in (("train", 1400), ("test", 3)):
        image = torch.from_numpy(np.array(store.image(split, index))).permute(2, 0, 1) / 255
        shift, scale = (torch.tensor(x)[:, None, None] for x in (store.mean, store.std))
        with torch.inference_mode():
            expected = features_of(network.model, ((image - shift) / scale)[None])[0]
        np.testing.assert_allclose(found[split][index], expected, rtol=1e-3, atol=1e-4)


def test_features_are_computed_once_and_trouble_neither_verify_nor_the_fingerprint(
    store, monkeypatch
):
    first = compute_features(backbone(store), store)["train"]
    assert files(store) == [".npy"]
    monkeypatch.setattr(features, "_forward", lambda *given: pytest.fail("computed again"))
    again = compute_features(backbone(store), store)["train"]
    assert isinstance(again, np.memmap) and np.array_equal(first, again)
    assert open_store(store.path).fingerprint == store.fingerprint
    assert not verify(store.path).problems


def test_the_key_changes_with_the_weights_but_not_with_the_classifier(store):
    one, other = backbone(store), backbone(store, seed=1)
    assert one.key(store) == backbone(store).key(store) != other.key(store)
    with torch.no_grad():
        one.model.classifier.weight.add_(1)
    assert one.key(store) == backbone(store).key(store)
    with torch.no_grad():
        next(one.model.parameters())[0, 0, 0, 0] += 1e-3
    assert one.key(store) != backbone(store).key(store)


def test_the_key_changes_with_size_and_normalization(store):
    from dataclasses import replace

    one = backbone(store)
    keys = {
        one.key(store),
        replace(one, size=(12, 12)).key(store),
        replace(one, mean=(0.0, 0.0, 0.0)).key(store),
        replace(one, config=one.config.model_copy(update={"model": "other"})).key(store),
        replace(one, config=one.config.model_copy(update={"variant": "google"})).key(store),
    }
    assert len(keys) == 5


NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.classifier = nn.Conv2d(3, 4, 3), nn.Linear(4, classes)

    def forward(self, x, heads=False):
        features = self.body(x).ACTIVATION().mean((2, 3))
        logits = self.classifier(features)
        return {"logits": logits, "features": features} if heads else logits
"""


def test_the_key_changes_with_the_code_of_a_network_that_has_the_same_weights(store, tmp_path):
    keys = set()
    for activation in ("relu", "tanh"):
        (tmp_path / "net.py").write_text(NETWORK.replace("ACTIVATION", activation))
        keys.add(backbone(store, model=f"{tmp_path}/net.py:Net").key(store))
    assert len(keys) == 2


def interrupted_after(monkeypatch, rows, error):
    original, counted = features._forward, []

    def forward(network, images):
        if sum(counted) >= rows:
            raise error
        counted.append(len(images))
        return original(network, images)

    monkeypatch.setattr(features, "_forward", forward)
    return counted


def test_an_interrupted_pass_goes_on_and_equals_an_uninterrupted_one(store, monkeypatch):
    whole = {
        name: np.array(rows) for name, rows in compute_features(backbone(store), store).items()
    }
    shutil.rmtree(store.path / "features")
    monkeypatch.setattr(features, "EVERY", 0.0)
    with monkeypatch.context() as context:
        interrupted_after(context, 1440, KeyboardInterrupt)  # within the second split
        with pytest.raises(KeyboardInterrupt):
            compute_features(backbone(store), store)
    assert files(store) == [".json", ".part"]
    counted = interrupted_after(monkeypatch, 10**9, None)
    found = compute_features(backbone(store), store)
    assert sum(counted) < 400
    assert all(np.array_equal(found[name], whole[name]) for name in whole)


def test_rows_that_no_record_vouches_for_are_computed_again(store, monkeypatch):
    whole = np.array(compute_features(backbone(store), store)["train"])
    shutil.rmtree(store.path / "features")
    monkeypatch.setattr(features, "EVERY", 0.0)
    with monkeypatch.context() as context:
        interrupted_after(context, 64, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            compute_features(backbone(store), store)
    (part,) = (store.path / "features").glob("*.part")
    with part.open("ab") as file:  # as a power cut may leave it: longer, but never written
        file.write(bytes(4 * 64 * 40))
    assert np.array_equal(compute_features(backbone(store), store)["train"], whole)


KILLED = """
import sys
from fastssl.probing import features
from tests.unit.probing.test_features import backbone
from pipelines.store.store import open_store
store = open_store(sys.argv[1])
original, features.EVERY, calls = features._forward, 0.0, []
def forward(*given):
    calls.append(given)
    if len(calls) == 8:
        print("eighth batch", flush=True)
        sys.stdin.read()  # until the signal was sent
    return original(*given)
features._forward = forward
features.compute_features(backbone(store), store)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_pass_goes_on(store, number, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(store.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,  # from where `tests` can be imported
    )
    stdout = Listener(process, process.stdout)
    stdout.line("eighth batch")
    process.send_signal(number)
    process.stdin.close()
    stdout.end()
    assert process.returncode == (-9 if number == signal.SIGKILL else 143)
    (record,) = (store.path / "features").glob("*.json")
    rows = 7 * 32 if number == signal.SIGKILL else 8 * 32
    assert json.loads(record.read_text())["rows"] == rows
    counted = interrupted_after(monkeypatch, 10**9, None)
    found = {k: np.array(v) for k, v in compute_features(backbone(store), store).items()}
    assert sum(counted) == 1797 - rows
    shutil.rmtree(store.path / "features")
    for name, rows in compute_features(backbone(store), store).items():
        assert np.array_equal(found[name], rows)


@pytest.mark.parametrize("rows", [0, 64])
def test_features_that_are_not_finite_are_refused_and_leave_no_file(store, rows, monkeypatch):
    monkeypatch.setattr(features, "EVERY", 0.0)
    network, original, counted = backbone(store), features._forward, []

    def forward(network, images):
        if sum(counted) >= rows:
            with torch.no_grad():
                next(network.model.parameters()).fill_(float("nan"))
        counted.append(len(images))
        return original(network, images)

    monkeypatch.setattr(features, "_forward", forward)
    with pytest.raises(DataError, match="not finite"):
        compute_features(network, store)
    assert files(store) == []


@pytest.mark.parametrize("recorded", [False, True])
def test_a_failure_to_read_images_is_not_reported_as_one_to_write(store, recorded, monkeypatch):
    monkeypatch.setattr(features, "EVERY", 0.0 if recorded else 1e9)
    original = features.EvaluationBatches.__iter__

    def batches(self):
        for number, batch in enumerate(original(self)):
            if number == 3:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            yield batch

    monkeypatch.setattr(features.EvaluationBatches, "__iter__", batches)
    with pytest.raises(ResourceError, match="can't be read: Input/output error") as caught:
        compute_features(backbone(store), store)
    assert str(store.path) in caught.value.what and "space" not in caught.value.fix
    assert files(store) == ([".json", ".part"] if recorded else [])


def test_a_failure_to_write_names_the_folder_of_the_features(store, monkeypatch):
    def fail(file, record, done):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(features, "EVERY", 0.0)
    monkeypatch.setattr(features, "_record", fail)
    with pytest.raises(ResourceError, match=r"features can't be written: No space left") as caught:
        compute_features(backbone(store), store)
    assert "free space" in caught.value.fix and files(store) == []


def test_a_damaged_file_is_computed_again(store):
    whole = np.array(compute_features(backbone(store), store)["test"])
    (path,) = (store.path / "features").iterdir()
    path.write_bytes(path.read_bytes()[:5000])
    assert np.array_equal(compute_features(backbone(store), store)["test"], whole)
