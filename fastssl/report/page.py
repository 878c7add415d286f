"""A report as one HTML page: no network, no framework, names escaped, data apart from code."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from fastssl.report import published
from fastssl.report.content import Content
from fastssl.report.tables import Entry, Table

FOLDER = Path(__file__).parent
SCRIPTS = ("page_parts.js", "page_blocks.js", "page.js")


def as_html(content: Content) -> str:
    """Return the page."""
    source = published.paper()["source"]
    body = [notes(content.notes), *[table_html(table, content) for table in content.tables[:2]]]
    body += [section(plot) for plot in content.plots]
    body += [table_html(table, content) for table in content.tables[2:]]
    page = Template((FOLDER / "page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title="fastssl report",
        heading=escape(content.heading()),
        menu=menu(content),
        body="\n".join(part for part in body if part),
        paper=f'<a href="{escape(source["url"])}">{escape(source["title"])}</a>, '
        f"{escape(source['venue'])}",
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        script="".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS),
        data=embedded({"plots": content.plots}),
    )


def embedded(data: Any) -> str:
    """Return JSON that can stand in a script element: no `<` can end it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def anchor(text: str) -> str:
    """Return an id that an address can hold."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def menu(content: Content) -> str:
    """Return the links to the parts of the page."""
    parts = [(table.id, table.title) for table in content.tables[:2]]
    parts += [(plot["id"], plot["title"]) for plot in content.plots]
    parts += [(table.id, table.title) for table in content.tables[2:]]
    links = [f'<a href="#{anchor(id)}">{escape(title)}</a>' for id, title in parts]
    return "\n".join(links)


def notes(told: list[str]) -> str:
    """Return what to know before reading on."""
    if not told:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in told)
    shown = " open" if len(told) <= 8 else ""
    return f'<details class="notes" id="notes"{shown}><summary>Read this first: {len(told)} ' + (
        f"note{'s' * (len(told) != 1)}</summary><ul>{items}</ul></details>"
    )


def section(plot: dict[str, Any]) -> str:
    """Return the place where the script draws a plot."""
    return (
        f'<section class="plot" id="{anchor(plot["id"])}" data-plot="{escape(plot["id"])}">'
        f"<h2>{escape(plot['title'])}</h2></section>"
    )


def table_html(table: Table, content: Content) -> str:
    """Return a table that scrolls by itself where the screen is narrow."""
    kinds = [kind(table, place) for place in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    lines = "".join(f"<tr>{row_html(row, kinds, content)}</tr>" for row in table.rows)
    return (
        f'<section id="{anchor(table.id)}"><h2>{escape(table.title)}</h2>'
        f"<p>{escape(table.note)}</p>"
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></section>"
    )


def kind(table: Table, place: int) -> str:
    """Return the class of a column of words, which stands at the left; numbers at the right."""
    first = [row[place].text[:1] for row in table.rows]
    words = any(map(str.isalpha, first)) and not any(map(str.isdigit, first))
    return ' class="words"' if words else ""


def row_html(row: list[Entry], kinds: list[str], content: Content) -> str:
    """Return the cells of a row; the first is its heading."""
    first, *rest = row
    text = escape(first.text)
    if first.run is not None:
        text = f'<a href="{escape(content.link(first.run))}">{text}</a>'
    return f'<th scope="row">{text}</th>' + "".join(map(entry_html, rest, kinds[1:]))


def entry_html(entry: Entry, kind: str) -> str:
    """Return one cell: our figure, its mark, and the smaller line below."""
    mark = ""
    if entry.mark:
        told = f"{entry.mark} than published by more than two standard deviations"
        mark = f' <abbr class="{entry.mark}" title="{told}">{entry.mark}</abbr>'
    below = f"<small>{escape(entry.below)}</small>" if entry.below else ""
    return f"<td{kind}>{escape(entry.text)}{mark}{below}</td>"
