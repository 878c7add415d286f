"""`fastssl report`: tables and plots of runs, side by side with published results.

Reads run folders and writes HTML, Markdown, CSV or JSON. It trains nothing and imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from fastssl.errors import ConfigError, writing
from fastssl.report.cells import group
from fastssl.report.content import Content, build
from fastssl.report.formats import as_csv, as_json, as_markdown
from fastssl.report.load import read_all
from fastssl.report.page import as_html
from pipelines.files import write_atomic

FORMATS = {"html": as_html, "md": as_markdown, "csv": as_csv, "json": as_json}


def write(runs: list[Path], out: Path, format: str | None = None) -> str:
    """Write a report on runs, or on folders of runs; return a line that describes it."""
    kind = format or out.suffix.removeprefix(".").lower()
    kind = {"htm": "html", "markdown": "md"}.get(kind, kind)
    if kind not in FORMATS:
        raise ConfigError(
            f"there is no report format {kind!r}", f"type --format {'|'.join(FORMATS)}"
        )
    if out.is_dir():
        raise ConfigError(f"{out} is a folder", f"type --out {out / f'report.{kind}'}")
    content = make([Path(run) for run in runs], out)
    document = FORMATS[kind](content)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, document.encode())
    count = len(content.found.runs)
    text = f"{out}: {count} run{'s' * (count != 1)} in {len(content.cells)} cells"
    return f"{text}, {len(content.notes)} notes" if content.notes else text


def make(runs: list[Path], out: Path) -> Content:
    """Read the runs and build the content of a report that will be written to `out`."""
    found = read_all(runs)
    return build(found, group(found.runs, found.missing), out)
