"""Fill the tables of README.md from the records in tools/results.

    python tools/readme_tables.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. A test checks that the README is
what this program would write, so no figure there is without its record.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "tools" / "results"


def record(name: str) -> dict[str, Any]:
    """Read one record."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(value: float) -> str:
    """Return 41.23 as 41 x and 1.234 as 1.2 x."""
    return f"{value:.0f} x" if value >= 10 else f"{value:.1f} x"


def digits(name: str) -> str:
    """Return a table of errors and seconds of rows on the digits."""
    rows = [
        [
            f"`{r['name'].replace('+', ' ')}`",
            " / ".join(f"{x:.2f}" for x in r["best"]),
            " / ".join(f"{x:.2f}" for x in r["median_of_last_20"]),
            f"{1000 * r['seconds_per_step']:.0f}",
        ]
        for r in sorted(record(name)["results"], key=lambda r: r["rate"])
    ]
    head = ["algorithm", "best error % (seeds)", "median of the last 20 %", "ms a step"]
    return table(head, rows)


def quickstart() -> str:
    """Return the quickstart's table."""
    return digits("digits-quickstart")


def algorithms() -> str:
    """Return the table of all algorithms."""
    return digits("digits-algorithms")


TABLES: dict[str, Callable[[], str]] = {
    "digits-quickstart": quickstart,
    "digits-algorithms": algorithms,
}


def filled(text: str) -> str:
    """Return the README with every table made anew."""

    def fill(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", fill, text, flags=re.S)


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
