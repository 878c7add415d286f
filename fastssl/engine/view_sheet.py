"""An image of what the model sees: original, weak view, four strong views with their ops."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fastssl.config.resolve import ResolvedConfig
from fastssl.engine.build_data import find_store, view_recipes
from fastssl.errors import ConfigError, writing
from pipelines.files import write_atomic
from pipelines.views import apply, draw, names

ROWS = 8
STRONG = 4
CELL = 128  # smallest side of an image in the sheet
GAP = 8
TEXT = 44  # room for three names under an image

Array = np.ndarray[Any, Any]


def write_sheet(resolved: ResolvedConfig, out: Path) -> str:
    """Write the sheet to a file; return a line that names it."""
    if out.suffix.lower() != ".png":
        raise ConfigError(f"views cannot be drawn as {out.name}", "end its name in .png")
    file = io.BytesIO()
    make_sheet(resolved).save(file, "PNG")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, file.getvalue())
    return f"{out}: images of {resolved.config.data}, original | weak | strong x {STRONG}"


def make_sheet(resolved: ResolvedConfig) -> Image.Image:
    """Draw the sheet of images from all over the training set."""
    store = find_store(resolved)
    recipes = view_recipes(resolved, store)
    labels = store.labels("train")
    count = min(ROWS, len(labels))
    indices = np.linspace(0, len(labels) - 1, count).astype(int)
    images = np.stack([store.image("train", int(index)) for index in indices])
    plan = [recipes["weak"]] + [recipes["strong"]] * STRONG
    seed, size = resolved.config.seed, (images.shape[1], images.shape[2])
    draws = [
        draw(recipe, seed=seed, step=0, stream=1, slots=np.arange(count), view=view, size=size)
        for view, recipe in enumerate(plan)
    ]
    # With mean 0 and std 1/255 a normalized value is the byte itself.
    views = apply(images, draws, plan, mean=(0, 0, 0), std=(1 / 255,) * 3)
    columns = [images, *(np.rint(view).astype(np.uint8) for view in views)]
    captions = [[[store.class_names[labels[p]] if labels[p] >= 0 else "no label"] for p in indices]]
    captions += [[["weak"]] * count] + [names(rows) for rows in draws[1:]]
    return paint(columns, captions)


def paint(columns: list[Array], captions: list[list[list[str]]]) -> Image.Image:
    """Lay the images out in a grid with their captions below."""
    scale = max(1, CELL // max(columns[0].shape[1:3]))
    width = scale * max(column.shape[2] for column in columns)
    height = scale * max(column.shape[1] for column in columns)
    heads = ["original", "weak", *(f"strong {k + 1}" for k in range(len(columns) - 2))]
    rows = len(columns[0])
    size = (len(columns) * (width + GAP) + GAP, rows * (height + TEXT) + 24)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for x, (head, column, texts) in enumerate(zip(heads, columns, captions, strict=True)):
        left = GAP + x * (width + GAP)
        pen.text((left, 6), head, fill="black", font=font)
        for y, (pixels, lines) in enumerate(zip(column, texts, strict=True)):
            top = 24 + y * (height + TEXT)
            image = Image.fromarray(pixels)
            larger = (image.width * scale, image.height * scale)
            sheet.paste(image.resize(larger, Image.Resampling.NEAREST), (left, top))
            for k, line in enumerate(lines[:3]):
                pen.text((left, top + height + 1 + 12 * k), line, fill="#444444", font=font)
    return sheet
