"""A contact sheet of pseudo-labels: the most and the least certain pictures of each class."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from fastssl.errors import ConfigError, writing
from fastssl.inference.pseudo_label import PseudoLabels
from pipelines.files import write_atomic
from pipelines.store.index import escape

EACH = 8  # pictures at either end
CELL = 96
CLASSES = 200  # on a sheet; more would not be looked at

HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Pseudo-labels</title>
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; max-width: 70em; color: #222 }
h2 { margin: 1.5em 0 .2em } p { margin: .2em 0; color: #555 }
div { display: flex; flex-wrap: wrap; gap: 8px }
figure { margin: 0; width: 104px } figcaption { font-size: 11px; overflow-wrap: anywhere }
img { width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated; background: #eee }
.no img { outline: 2px solid #c60 }
</style>
<h1>Pseudo-labels</h1>
<p>Of each class the most and the least certain pictures; framed: below the threshold.</p>
"""


def write_sheet(pseudo_labels: PseudoLabels, out: Path) -> None:
    """Write the sheet as HTML or PNG, by the ending of the name."""
    if out.suffix.lower() not in (".html", ".png"):
        raise ConfigError(f"a contact sheet cannot be {out.name}", "end its name in .html or .png")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix.lower() == ".png":
            file = io.BytesIO()
            paint(pseudo_labels).save(file, "PNG")
            write_atomic(out, file.getvalue())
        else:
            write_atomic(out, page(pseudo_labels).encode())


def ends(
    pseudo_labels: PseudoLabels, number: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the most and the least certain guesses of a class, without overlap."""
    own = np.flatnonzero(pseudo_labels.label == number)
    order = own[np.argsort(-pseudo_labels.confidence[own], kind="stable")]
    return order[:EACH], order[EACH:][-EACH:][::-1]


def page(pseudo_labels: PseudoLabels) -> str:
    """Write the sheet as one HTML file, pictures inside, every name escaped."""
    paths = pseudo_labels.store.source_paths("train")
    parts = [HEAD]
    for number, name in enumerate(pseudo_labels.classes[:CLASSES]):
        most, least = ends(pseudo_labels, number)
        own = pseudo_labels.label == number
        parts.append(
            f"<h2>{html.escape(escape(name))}</h2>\n<p>{int(own.sum()):,} pictures, "
            f"{int((own & pseudo_labels.trusted).sum()):,} reach the threshold "
            f"{pseudo_labels.thresholds[number]:.3f}</p>\n"
        )
        for title, chosen in (("most certain", most), ("least certain", least)):
            figures = "".join(_figure(pseudo_labels, int(one), paths) for one in chosen)
            parts.append(f"<p>{title}</p>\n<div>{figures}</div>\n" if figures else "")
    return "".join(parts) + "</html>\n"


def _figure(pseudo_labels: PseudoLabels, one: int, paths: list[str]) -> str:
    place = int(pseudo_labels.places[one])
    file = io.BytesIO()
    picture = Image.fromarray(np.asarray(pseudo_labels.store.image("train", place)))
    picture.thumbnail((CELL, CELL))
    picture.save(file, "PNG")
    source = html.escape(escape(paths[place]))
    data = base64.b64encode(file.getvalue()).decode()
    kind = "" if pseudo_labels.trusted[one] else ' class="no"'
    return (
        f'<figure{kind}><img alt="" title="{source}" src="data:image/png;base64,{data}">'
        f"<figcaption>{pseudo_labels.confidence[one]:.3f} "
        f"{html.escape(escape(Path(paths[place]).name))}</figcaption></figure>"
    )


def paint(pseudo_labels: PseudoLabels) -> Image.Image:
    """Draw the sheet: a row a class, the most certain on the left, the least on the right."""
    names = pseudo_labels.classes[:CLASSES]
    step, left = CELL + 8, 120
    sheet = Image.new("RGB", (left + (2 * EACH + 1) * step, 24 + len(names) * (step + 12)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    pen.text((left, 6), "most certain", fill="black", font=font)
    pen.text((left + (EACH + 1) * step, 6), "least certain", fill="black", font=font)
    for number, name in enumerate(names):
        top = 24 + number * (step + 12)
        pen.text((6, top), escape(name)[:18], fill="black", font=font)
        for side, chosen in enumerate(ends(pseudo_labels, number)):
            for column, one in enumerate(chosen):
                x = left + (side * (EACH + 1) + column) * step
                pixels = pseudo_labels.store.image("train", int(pseudo_labels.places[one]))
                picture = Image.fromarray(np.asarray(pixels)).resize((CELL, CELL))
                sheet.paste(picture, (x, top))
                color = "#444444" if pseudo_labels.trusted[one] else "#cc6600"
                pen.text(
                    (x, top + CELL), f"{pseudo_labels.confidence[one]:.3f}", fill=color, font=font
                )
    return sheet
