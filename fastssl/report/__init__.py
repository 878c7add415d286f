"""`fastssl report`: tables and plots of runs, side by side with published results.

Reads run folders and writes HTML, Markdown, CSV or JSON. It trains nothing and imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from fastssl.errors import ConfigError, writing
from fastssl.report.content import build
from fastssl.report.formats import as_csv, as_json, as_markdown
from fastssl.report.page import as_html
from pipelines.files import write_atomic
from pipelines.text import for_terminal

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
    content = build([Path(run) for run in runs], out)
    document = FORMATS[kind](content)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        # YAML can spell half a character, which no encoding has.
        write_atomic(out, document.encode(errors="backslashreplace"))
    notes = f", {len(content.notes)} notes" if content.notes else ""
    return f"{for_terminal(str(out))}: {content.counts()}{notes}"
