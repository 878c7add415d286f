"""A report as one HTML page that needs no network; Jinja escapes every name in it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fastssl.report import published
from fastssl.report.content import Content
from fastssl.report.tables import Table

FOLDER = Path(__file__).parent
SCRIPTS = ("page_parts.js", "page_blocks.js", "page.js")


def as_html(content: Content) -> str:
    """Return the page."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["anchor"] = anchor
    # `tojson` also escapes <, > and &, so that no name can end the script element.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html").render(
        content=content,
        plots=[asdict(plot) for plot in content.plots],
        source=published.paper()["source"],
        text_columns=text_columns,
        style=own_file("page.css"),
        script=Markup("").join(own_file(name) for name in SCRIPTS),
    )


def own_file(name: str) -> Markup:
    """Return the text of a file of this package, to be inserted without escaping."""
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


def anchor(text: str) -> str:
    """Return an id that a URL can hold."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def text_columns(table: Table) -> list[bool]:
    """Return which columns hold text, aligned left; columns of numbers are aligned right."""
    starts = [[row[index].text[:1] for row in table.rows] for index in range(len(table.columns))]
    return [any(map(str.isalpha, s)) and not any(map(str.isdigit, s)) for s in starts]
