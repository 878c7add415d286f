"""Unusual images are read as people see them; bad ones are reported or left out."""

import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from pipelines.convert import Options, convert
from pipelines.convert.images import BadImageError, fit, load, mean_and_std
from pipelines.convert.open import open_source
from pipelines.errors import DataError
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests.image_files import write_folder
from tests.installed import INSTALLED_FORMATS
from tests.reading import check

RED, WHITE = (255, 0, 0), (255, 255, 255)


def deep_png(values: np.ndarray) -> bytes:
    """Write a 16-bit RGB PNG, which Pillow reads and does not write."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def part(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + part(b"IDAT", zlib.compress(rows))
        + part(b"IEND", b"")
    )


def corner(path: Path) -> tuple[int, int, int]:
    return load(str(path)).getpixel((0, 0))


def saved(photo: Image.Image, path: Path, **options) -> Path:
    photo.save(path, **options)
    return path


def test_grey_palette_and_cmyk(tmp_path):
    assert corner(saved(Image.new("L", (4, 4), 77), tmp_path / "a.png")) == (77, 77, 77)
    assert corner(saved(Image.new("1", (4, 4), 1), tmp_path / "b.png")) == WHITE
    red = Image.new("RGB", (8, 8), RED)
    assert corner(saved(red.quantize(4), tmp_path / "c.png")) == RED
    cmyk = corner(saved(red.convert("CMYK"), tmp_path / "d.jpg", quality=100))
    assert np.abs(np.subtract(cmyk, RED)).max() <= 4
    for suffix in ("bmp", "webp", "gif", "tif", "ppm"):
        found = corner(
            saved(red, tmp_path / f"e.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
        )
        assert found == RED, suffix


def test_transparent_parts_show_white(tmp_path):
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert corner(saved(clear, tmp_path / "a.png")) == WHITE
    half = corner(saved(Image.new("RGBA", (4, 4), (255, 0, 0, 128)), tmp_path / "b.png"))
    assert half == (255, 127, 127)
    assert corner(saved(Image.new("LA", (4, 4), (0, 0)), tmp_path / "c.png")) == WHITE
    palette = Image.new("P", (4, 4), 3)
    palette.putpalette([9] * 768)
    assert corner(saved(palette, tmp_path / "d.png", transparency=3)) == WHITE


def test_sixteen_bits_are_scaled(tmp_path):
    grey = Image.fromarray(np.full((4, 4), 0x8080, np.uint16))
    assert corner(saved(grey, tmp_path / "a.png")) == (128, 128, 128)
    assert corner(saved(grey, tmp_path / "a.tif")) == (128, 128, 128)
    (tmp_path / "b.png").write_bytes(deep_png(np.full((4, 4, 3), 0xFFFF)))
    assert corner(tmp_path / "b.png") == WHITE


def test_a_photograph_taken_sideways_stands_upright(tmp_path):
    photo = Image.new("RGB", (20, 10), WHITE)
    photo.paste(RED, (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    upright = load(str(saved(photo, tmp_path / "a.png", exif=exif)))
    assert upright.size == (10, 20)
    assert (upright.getpixel((5, 2)), upright.getpixel((5, 17))) == (RED, WHITE)


def test_the_three_ways_to_a_square():
    photo = Image.new("RGB", (40, 20), WHITE)
    photo.paste(RED, (10, 0, 30, 20))
    squash, crop, pad = (np.asarray(fit(photo, 20, way)) for way in ("squash", "crop", "pad"))
    assert (crop == RED).all()
    assert (squash[:, 0] == WHITE).all() and (squash[:, 10] == RED).all()
    assert (pad[0] == 0).all() and (pad[10, 10] == RED).all()
    wanted = photo.resize((20, 20), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(squash, np.asarray(wanted))
    photo = Image.effect_noise((40, 20), 80).convert("RGB")
    padded = ImageOps.pad(photo, (30, 30), Image.Resampling.BILINEAR, color="black")
    assert fit(photo, 30, "pad", "bilinear") == padded != fit(photo, 30, "pad")


def bad_photos(folder: Path) -> dict[str, str]:
    """Write images that cannot be taken; return name -> a word of the reason."""
    good = io.BytesIO()
    Image.effect_noise((64, 64), 80).convert("RGB").save(good, "JPEG")
    whole = good.getvalue()
    bomb = bytearray(deep_png(np.zeros((1, 1, 3))))
    bomb[16:24] = struct.pack(">II", 100_000, 100_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    content = {
        "short.jpg": (whole[: len(whole) // 2], "truncated"),
        "empty.png": (b"", "not an image"),
        "text.jpg": (b"this is not an image at all", "not an image"),
        "bomb.png": (bytes(bomb), "10000000000 pixels"),
        "new\nline.jpg": (whole[:100], ""),
        "stray\udcff.jpg": (b"\xff\xd8\xff", ""),
    }
    for name, (data, _) in content.items():
        (folder / name).write_bytes(data)
    return {name: why for name, (_, why) in content.items()}


def test_bad_images_are_refused_with_a_reason(tmp_path):
    for name, why in bad_photos(tmp_path).items():
        with pytest.raises(BadImageError, match=why or None):
            load(str(tmp_path / name))
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(BadImageError, match="floating-point"):
        load(str(tmp_path / "float.tif"))


def test_ghostscript_does_not_start_for_an_eps_file_of_another_name(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gs"
    program.write_text(f"#!/bin/sh\necho started >> {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    content = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    source = write_folder(tmp_path / "pets", classes=2, per_class=2)
    (source / "class0" / "drawing.png").write_text(content)
    with pytest.raises(BadImageError, match="not an image that can be read"):
        load(str(source / "class0" / "drawing.png"))
    raw = open_source(str(source), Options())  # looks at sizes
    with pytest.raises(DataError, match="1 of 5 images cannot be read"):
        convert(raw, tmp_path / "out", Options(workers=1))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_images_stop_the_conversion_with_a_list(workers, tmp_path):
    source = write_folder(tmp_path / "pets", per_class=30, classes=2)
    names = bad_photos(source / "class1")
    for number in range(6):
        (source / "class0" / f"void{number}.jpg").touch()
    raw = open_source(str(source), Options(test_fraction=0))
    with pytest.raises(DataError) as caught:
        convert(raw, tmp_path / "out", Options(formats=("dali",), workers=workers))
    lines = caught.value.what.splitlines()
    assert lines[0] == f"{6 + len(names)} of {60 + 6 + len(names)} images cannot be read:"
    assert len(lines) == 1 + 10 + 1 and lines[-1].strip() == "and 2 more"
    assert "--on-error skip" in caught.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pets"]


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_images_are_left_out_and_recorded(workers, tmp_path):
    source = write_folder(tmp_path / "pets", per_class=30, classes=2)
    names = bad_photos(source / "class0")
    raw = open_source(str(source), Options(test_fraction=0))
    out = tmp_path / "out"
    convert(raw, out, Options(formats=INSTALLED_FORMATS, workers=workers, on_error="skip"))
    store = open_store(out)
    assert store.splits["train"].count == 60
    assert store.labels("train").tolist() == [0] * 30 + [1] * 30
    assert verify(out).problems == []
    skipped = json.loads((out / "dataset.json").read_text())["skipped"]
    assert len(skipped) == len(names)
    assert any(r"new\x0aline.jpg" in path for path, _ in skipped)
    if "ffcv" in store.formats:
        check(store, "train", None, store.labels("train").tolist())


def test_a_test_set_of_bad_images_alone_leaves_none(tmp_path):
    source = write_folder(tmp_path / "pets", per_class=2)
    (tmp_path / "test" / "class0").mkdir(parents=True)
    (tmp_path / "test" / "class0" / "empty.jpg").touch()
    raw = open_source(str(source), Options(test=tmp_path / "test"))
    convert(raw, tmp_path / "out", Options(on_error="skip"))
    assert set(open_store(tmp_path / "out").splits) == {"train"}
    assert not list((tmp_path / "out").glob("test*"))


def test_moments_are_those_of_numpy():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 5, 3), dtype=np.uint8)
    parts = [Image.fromarray(part.reshape(-1, 5, 3)) for part in (pixels[:3], pixels[3:])]
    mean, std = mean_and_std(np.sum([part.histogram() for part in parts], axis=0))
    np.testing.assert_allclose(mean, pixels.mean((0, 1, 2)) / 255, atol=1e-6)
    np.testing.assert_allclose(std, pixels.std((0, 1, 2)) / 255, atol=1e-6)
