"""The sheet of views: it shows what Pillow would make, and damage and bad names are reported."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastssl.config.resolve import ResolvedConfig, load
from fastssl.engine import view_sheet
from fastssl.errors import ConfigError, DataError, ResourceError
from pipelines.convert.ensure import ensure_store, open_store
from pipelines.views import recipes
from tests import pillow_views


@pytest.fixture
def resolved(data: Path) -> ResolvedConfig:
    ensure_store("digits")
    return load("digits", ["seed=3"])


def test_the_sheet_shows_the_views_that_pillow_makes(
    resolved: ResolvedConfig, tmp_path: Path
) -> None:
    message = view_sheet.write_sheet(resolved, tmp_path / "made" / "v.png")
    assert "digits" in message and "strong x 4" in message
    sheet = np.asarray(Image.open(tmp_path / "made" / "v.png"))
    store = ensure_store("digits")
    made = recipes(flip=False, padding=2, size=(16, 16))
    for row, place in ((0, 0), (view_sheet.ROWS - 1, store.splits["train"].count - 1)):
        image = store.image("train", place)
        where = {"seed": 3, "step": 0, "stream": 1, "slot": row}
        cells = [image, pillow_views.view(made["weak"], image, **where, view=0)]
        cells += [pillow_views.view(made["strong"], image, **where, view=k) for k in range(1, 5)]
        top = 24 + row * (128 + view_sheet.TEXT)
        for column, cell in enumerate(cells):
            left = view_sheet.GAP + column * (128 + view_sheet.GAP)
            shown = sheet[top : top + 128 : 8, left : left + 128 : 8]
            np.testing.assert_array_equal(shown, cell, f"row {row}, column {column}")


def test_a_name_that_is_no_png_is_reported_before_anything_is_drawn(
    resolved: ResolvedConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"v\.gif") as caught:
        view_sheet.write_sheet(resolved, tmp_path / "v.gif")
    assert caught.value.fix == "end its name in .png" and not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_sheet(
    resolved: ResolvedConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "v.png").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space left"):
        view_sheet.write_sheet(resolved, tmp_path / "v.png")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_damaged_image_is_named(resolved: ResolvedConfig, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "digits", tmp_path / "digits")
    store = open_store(tmp_path / "digits")
    file = store.shards("train")[0]
    content = bytearray(file.read_bytes())
    content[int(store.records("train")["offset"][0]) + 5] ^= 1
    file.write_bytes(content)
    damaged = load("digits", [f"store={tmp_path / 'digits'}"])
    with pytest.raises(DataError, match=f"image 0 of split train is damaged in .*{file.name}"):
        view_sheet.make_sheet(damaged)
