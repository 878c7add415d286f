"""Curves of cells: runs of several seeds averaged step by step, thinned and rounded for a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastssl.report.cells import Cell
from fastssl.report.load import Run, number

KEPT = 200  # points of one curve
KEPT_BY_CLASS = 100  # of one among a dozen

Line = dict[str, Any]
Series = dict[str, Any]
Value = Callable[[Line], float | None]


def curve(
    cell: Cell, lines: Callable[[Run], list[Line]], value: Value, band: bool = True
) -> Series | None:
    """Return the mean over seeds by step, with the time and the lowest and highest seed."""
    tracks = [track for run in cell.used or cell.runs if (track := points(lines(run), value))]
    if not tracks:
        return None
    steps = shared_steps(tracks, KEPT if band else KEPT_BY_CLASS)
    here = [[track[step] for track in tracks if step in track] for step in steps]
    series: Series = {
        "name": cell.name,
        "x": steps,
        "t": [rounded(mean_time(rows)) for rows in here],
        "y": [rounded(sum(y for y, _ in rows) / len(rows)) for rows in here],
    }
    if band and len(tracks) > 1:
        series["lo"] = [rounded(min(y for y, _ in rows)) for rows in here]
        series["hi"] = [rounded(max(y for y, _ in rows)) for rows in here]
    return series


def points(lines: list[Line], value: Value) -> dict[int, tuple[float, float | None]]:
    """Return step → (value, seconds) where there is a value."""
    found = {}
    for line in lines:
        y = value(line)
        if y is not None:
            found[line["step"]] = (y, number(line.get("seconds")))
    return found


def shared_steps(tracks: list[dict[int, Any]], kept: int) -> list[int]:
    """Return the steps at which every run that got so far has a value, thinned.

    A mean over runs that come and go would show their differences as jumps.
    """
    ends = [max(track) for track in tracks]
    every = sorted({step for track in tracks for step in track})
    shared = [
        step
        for step in every
        if all(step in track for track, end in zip(tracks, ends, strict=True) if end >= step)
    ]
    return thin(shared if len(shared) > 1 else sorted(tracks[0]), kept)


def thin(steps: list[int], kept: int) -> list[int]:
    """Return at most so many steps, the first and the last among them."""
    if len(steps) <= kept:
        return steps
    places = {round(k * (len(steps) - 1) / (kept - 1)) for k in range(kept)}
    return [steps[place] for place in sorted(places)]


def mean_time(rows: list[tuple[float, float | None]]) -> float | None:
    """Return the mean of the times that are known."""
    times = [time for _, time in rows if time is not None]
    return sum(times) / len(times) if times else None


def rounded(value: float | None) -> float | None:
    """Round to what a plot can show: five figures."""
    return None if value is None else float(f"{value:.5g}")


def choice(name: str, series: list[Series], runs: list[list[str]]) -> dict[str, Any]:
    """Return a choice of a plot; steps and times that all its curves share stand once."""
    first = series[0]
    found: dict[str, Any] = {"name": name, "runs": runs, "series": series}
    if all(item["x"] == first["x"] and item["t"] == first["t"] for item in series):
        found |= {"x": first["x"], "t": first["t"]}
        found["series"] = [{k: v for k, v in item.items() if k not in "xt"} for item in series]
    return found
