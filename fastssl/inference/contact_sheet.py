"""A contact sheet of pseudo-labels: the images of highest and lowest confidence of each class."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment
from PIL import Image, ImageDraw, ImageFont

from fastssl.errors import ConfigError, writing
from fastssl.inference.pseudo_label import PseudoLabels
from pipelines.files import write_atomic
from pipelines.store.store import Store
from pipelines.text import for_terminal

EACH = 8  # images at either end
ENDS = ("highest confidence", "lowest confidence")
CELL = 96  # pixels of an image's side
CLASSES = 200  # on a sheet; nobody would look at more
TEMPLATE = Path(__file__).with_suffix(".html")


def check_name(out: Path) -> None:
    """Raise if the name does not end as that of a sheet."""
    if out.suffix.lower() not in (".html", ".png"):
        raise ConfigError(f"a contact sheet cannot be {out.name}", "end its name in .html or .png")


def write_sheet(pseudo_labels: PseudoLabels, out: Path) -> None:
    """Write the sheet as HTML or PNG, by the ending of the file name."""
    check_name(out)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix.lower() == ".png":
            write_atomic(out, as_png(paint(pseudo_labels)))
        else:
            write_atomic(out, page(pseudo_labels).encode())


def ends(
    pseudo_labels: PseudoLabels, number: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the pseudo-labels of a class with the highest and lowest confidence, disjoint."""
    own = np.flatnonzero(pseudo_labels.label == number)
    order = own[np.argsort(-pseudo_labels.confidence[own], kind="stable")]
    return order[:EACH], order[EACH:][-EACH:][::-1]


def page(pseudo_labels: PseudoLabels) -> str:
    """Return the sheet as one HTML file that contains its images."""
    paths = pseudo_labels.store.source_paths("train")
    classes = [
        {
            **row,
            "ends": [
                (title, [_describe(pseudo_labels, int(one), paths) for one in chosen])
                for title, chosen in zip(ENDS, ends(pseudo_labels, number), strict=True)
            ],
        }
        for number, row in enumerate(pseudo_labels.class_rows()[:CLASSES])
    ]
    return render(TEMPLATE, classes=classes)


def render(template: Path, **values: Any) -> str:
    """Return a page of HTML."""
    # Class and file names are the user's: autoescape keeps them from becoming HTML, and
    # `printable` replaces the control characters that HTML cannot hold.
    environment = Environment(autoescape=True)
    environment.filters["printable"] = for_terminal
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)


def _describe(pseudo_labels: PseudoLabels, one: int, paths: list[str]) -> dict[str, Any]:
    index = int(pseudo_labels.indices[one])
    return {
        "path": paths[index],
        "name": Path(paths[index]).name,
        "confidence": pseudo_labels.confidence[one],
        "trusted": pseudo_labels.trusted[one],
        "png": thumbnail(pseudo_labels.store, index),
    }


def thumbnail(store: Store, index: int, side: int = CELL) -> str:
    """Return a training image, at most `side` pixels wide and high, as PNG in base64."""
    image = Image.fromarray(np.asarray(store.image("train", index)))
    image.thumbnail((side, side))
    return base64.b64encode(as_png(image)).decode()


def as_png(image: Image.Image) -> bytes:
    """Return the bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def paint(pseudo_labels: PseudoLabels) -> Image.Image:
    """Draw the sheet: a row per class, the highest confidence on the left, the lowest right."""
    names = pseudo_labels.classes[:CLASSES]
    step, left = CELL + 8, 120
    sheet = Image.new("RGB", (left + (2 * EACH + 1) * step, 24 + len(names) * (step + 12)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for side, title in enumerate(ENDS):
        pen.text((left + side * (EACH + 1) * step, 6), title, fill="black", font=font)
    for number, name in enumerate(names):
        top = 24 + number * (step + 12)
        pen.text((6, top), for_terminal(name)[:18], fill="black", font=font)
        for side, chosen in enumerate(ends(pseudo_labels, number)):
            for column, one in enumerate(chosen):
                x = left + (side * (EACH + 1) + column) * step
                pixels = pseudo_labels.store.image("train", int(pseudo_labels.indices[one]))
                sheet.paste(Image.fromarray(np.asarray(pixels)).resize((CELL, CELL)), (x, top))
                color = "#444444" if pseudo_labels.trusted[one] else "#cc6600"
                confidence = f"{pseudo_labels.confidence[one]:.3f}"
                pen.text((x, top + CELL), confidence, fill=color, font=font)
    return sheet
