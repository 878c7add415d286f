"""The compiled resize gives Pillow's pixels, every one, and so the same store."""

import hashlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from pipelines.convert import Options, convert, options
from pipelines.convert.images import fit
from pipelines.convert.open import open_source
from tests.image_files import write_folder

METHODS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def geometries() -> list[tuple[int, int, int]]:
    """Width, height and new side: of all kinds, and where Pillow turns to going down first."""
    random = np.random.default_rng(0)
    found = [tuple(random.integers([1, 1, 4], [700, 700, 260]).tolist()) for _ in range(150)]
    for side in (5, 64, 255, 256):
        for height in (side, side + 1, side + 2, 2 * side, 2 * side + 1, 5 * side):
            found += [((height + side) // 2 + by, height, side) for by in (-1, 0, 1)]
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["squash", "crop"])
def test_every_pixel_is_pillows(way, method):
    random = np.random.default_rng(1)
    for width, height, side in geometries():
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        photo = Image.fromarray(np.where(pixels > 127, 255, 0).astype(np.uint8))  # overshoots
        if way == "squash":
            wanted = photo.resize((side, side), METHODS[method])
        else:
            wanted = ImageOps.fit(photo, (side, side), METHODS[method])
        for many in (False, True):
            found = fit(photo, side, way, method, many=many)
            np.testing.assert_array_equal(
                np.asarray(found), np.asarray(wanted), f"{width} x {height} to {side}, {many}"
            )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["squash", "crop", "pad"])
def test_a_store_does_not_tell_how_its_images_were_resized(way, method, tmp_path, monkeypatch):
    pets = write_folder(tmp_path / "pets", per_class=12, size=(40, 61))
    Image.new("RGB", (30, 50), "red").save(pets / "class0" / "commented.jpg", comment=b"a comment")
    files = {}
    for many in (1, 10_000):
        monkeypatch.setattr(options, "MANY", many)
        raw = open_source(str(pets), Options(test_fraction=0))
        how = Options(size=24, resize=way, interpolation=method, quality=90, workers=1)
        assert how.target(raw, raw.splits["train"]).many == (many == 1)
        convert(raw, tmp_path / str(many), how)
        files[many] = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (tmp_path / str(many)).iterdir()
        }
    assert files[1] == files[10_000]
