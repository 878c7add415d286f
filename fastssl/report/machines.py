"""What the runs ran on, as they wrote it down themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastssl.report.load import Run
from fastssl.report.tables import Entry, Table


def machines(runs: list[Run]) -> list[Table]:
    """Return a table with a line for each environment, or none where no run tells of its own."""
    counts = Counter(told(run.environment) for run in runs)
    table = Table(
        "machines",
        "What the runs ran on",
        "As each run noted at its start; + is a checkout with changes that are in no commit.",
        ["processor", "cores", "torch", "commit", "runs"],
    )
    for texts, count in sorted(counts.items()):
        if any(texts):
            table.rows.append([*(Entry(text or "-") for text in texts), Entry(str(count))])
    return [table] if table.rows else []


def told(environment: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return processor, cores, version of torch and commit, '' for what is not there."""
    versions = environment.get("versions")
    torch = versions.get("torch") if isinstance(versions, dict) else None
    processor, cores, commit = (environment.get(key) for key in ("processor", "cores", "commit"))
    return text(processor), text(cores), text(torch), text(commit)


def text(value: Any) -> str:
    """Return a word or a whole number as text, '' for anything else."""
    return str(value)[:80] if isinstance(value, str | int) else ""
