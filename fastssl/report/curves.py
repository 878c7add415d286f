"""Curves of cells: runs of several seeds averaged step by step, thinned and rounded for a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastssl.report.cells import Cell
from fastssl.report.run_metrics import stat

POINTS = 200  # of one curve
POINTS_BY_CLASS = 100  # of one among a dozen

Series = dict[str, Any]


def curve(
    cell: Cell, lines: str, metric: str, *, scale: float = 1, c: int | None = None
) -> Series | None:
    """Return a metric, or that of class c, by step: the mean, lowest and highest over seeds.

    `lines` is "evals" or "trains". The curve of a class has no lowest and highest.
    """
    tracks = []
    for run in cell.used or cell.runs:
        found = [(line, getattr(line, metric)) for line in getattr(run, lines)]
        if c is not None:
            found = [(line, values[c]) for line, values in found if c < len(values)]
        known = [(line, scale * y) for line, y in found if y is not None]
        if known:
            tracks.append({line.step: (y, line.seconds) for line, y in known})
    if not tracks:
        return None
    steps = shared_steps(tracks, POINTS if c is None else POINTS_BY_CLASS)
    points = [[track[step] for track in tracks if step in track] for step in steps]
    values = [[y for y, _ in rows] for rows in points]
    times = [stat(seconds for _, seconds in rows) for rows in points]
    series: Series = {
        "name": cell.name,
        "x": steps,
        "t": [time and rounded(time.mean) for time in times],
        "y": [rounded(sum(ys) / len(ys)) for ys in values],
    }
    if c is None and len(tracks) > 1:
        series["lo"] = [rounded(min(ys)) for ys in values]
        series["hi"] = [rounded(max(ys)) for ys in values]
    return series


def shared_steps(tracks: list[dict[int, Any]], count: int) -> list[int]:
    """Return the steps at which every run that got so far has a value, at most `count` of them.

    A mean over a changing set of runs would show the differences between runs as jumps.
    """
    ends = [(track, max(track)) for track in tracks]
    every = sorted({step for track in tracks for step in track})
    shared = [s for s in every if all(s in track for track, end in ends if end >= s)]
    return thin(shared if len(shared) > 1 else sorted(tracks[0]), count)


def thin(steps: list[int], count: int) -> list[int]:
    """Return at most `count` steps, evenly spread, with the first and the last."""
    if len(steps) <= count:
        return steps
    return [steps[round(index)] for index in np.linspace(0, len(steps) - 1, count)]


def rounded(value: float) -> float:
    """Round to what a plot can show: five digits."""
    return float(f"{value:.5g}")
