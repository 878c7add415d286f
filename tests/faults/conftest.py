"""How often each fault is tried, and the table at the end.

`pytest -m faults tests/faults` (`make faults`) runs everything here at full count and writes
tools/results/faults.json; in `make test` a few of each kind are tried. FAULTS=10 takes a tenth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "tools" / "results"
OURS = Path(__file__).parent


def in_full(config: pytest.Config) -> bool:
    """Return True if the faults were requested by their mark."""
    return config.getoption("markexpr") == "faults"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the mark asked for, everything here belongs to it."""
    for item in items:
        if in_full(config) and OURS in item.path.parents:
            item.add_marker("faults")


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """Return how often to try: a few times, or the full count scaled by FAULTS (percent)."""

    def choose(few: int, full: int) -> int:
        share = float(os.environ.get("FAULTS", "100")) / 100
        return max(few, round(full * share)) if in_full(request.config) else few

    return choose


@pytest.fixture(scope="session")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    from tests import runs
    from tests.faults import fault_points

    folder = tmp_path_factory.mktemp("whole")
    assert runs.train(folder / "run", before=fault_points.quiet(folder / "message")) == 0
    return folder / "run"


class Tally:
    """Counts one kind of fault."""

    def __init__(self) -> None:
        self.kind = ""
        self.tried = 0
        self.survived = 0
        self.facts: dict[str, Any] = {}

    def __call__(self, kind: str) -> Tally:
        """Name the kind."""
        self.kind = kind
        return self

    def __enter__(self) -> None:
        self.tried += 1

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.survived += error is None


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Iterator[Tally]:
    """Count tries; what went through without an assertion has survived."""
    counted = Tally()
    yield counted
    row = {"name": counted.kind, "tried": counted.tried, "survived": counted.survived}
    record_property("fault", {**row, **counted.facts})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table; keep it as a record where everything was tried."""
    found: dict[str, dict[str, Any]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                for name, row in report.user_properties:
                    if name == "fault":
                        _join(found, row)
    if not found or not in_full(config):
        return
    rows = sorted(found.values(), key=lambda row: row["name"])
    terminalreporter.write_line("")
    terminalreporter.write_line(f"{'kind of fault':<58}{'tried':>8}{'survived':>10}{'lost':>6}")
    for row in rows:
        lost = row["tried"] - row["survived"]
        terminalreporter.write_line(
            f"{row['name']:<58}{row['tried']:>8,}{row['survived']:>10,}{lost:>6,}"
        )
        facts = {k: v for k, v in row.items() if k not in ("name", "tried", "survived")}
        if facts:
            terminalreporter.write_line(
                "    " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in facts.items())
            )
    if os.environ.get("FAULTS", "100") == "100" and _everything(config):
        _save(rows, len(terminalreporter.stats.get("failed", [])))


def _everything(config: pytest.Config) -> bool:
    """Return True if all faults were tried, not one file or name of them."""
    given = [Path(word).resolve() for word in config.args]
    return given == [OURS] and not config.option.keyword


def _join(found: dict[str, dict[str, Any]], row: dict[str, Any]) -> None:
    old = found.get(row["name"], {"tried": 0, "survived": 0})
    sums = {key: old[key] + row[key] for key in ("tried", "survived")}
    found[row["name"]] = {**old, **row, **sums}


def _save(rows: list[dict[str, Any]], failed: int) -> None:
    from fastssl.profiling.measure import environment, save

    tried, survived = (sum(row[key] for row in rows) for key in ("tried", "survived"))
    for row in rows:
        share = row["survived"] / max(1, row["tried"])
        row |= {"rate": share, "unit": "share survived", "spread": 0.0}
    record = {
        "what": "faults",
        "environment": environment("make faults"),
        "results": rows,
        "ratio": {},
        "tried": tried,
        "survived": survived,
        "failed_tests": failed,
    }
    save(record, RESULTS)
