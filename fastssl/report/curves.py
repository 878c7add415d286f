"""Curves of cells: runs of several seeds averaged step by step, thinned and rounded for a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastssl.report.cells import Cell
from fastssl.report.load import Run
from fastssl.report.records import MetricsLine
from fastssl.report.run_metrics import stat

POINTS = 200  # of one curve
POINTS_BY_CLASS = 100  # of one among a dozen

Series = dict[str, Any]


def curve(
    cell: Cell,
    lines: Callable[[Run], list[MetricsLine]],
    value: Callable[[MetricsLine], float | None],
    *,
    band: bool = True,
) -> Series | None:
    """Return the mean over seeds by step, with the time and the lowest and highest seed."""
    tracks = [
        {line.step: (y, line.seconds) for line in lines(run) if (y := value(line)) is not None}
        for run in cell.used or cell.runs
    ]
    tracks = [track for track in tracks if track]
    if not tracks:
        return None
    steps = shared_steps(tracks, POINTS if band else POINTS_BY_CLASS)
    points = [[track[step] for track in tracks if step in track] for step in steps]
    values = [[y for y, _ in rows] for rows in points]
    times = [stat(seconds for _, seconds in rows) for rows in points]
    series: Series = {
        "name": cell.name,
        "x": steps,
        "t": [time and rounded(time.mean) for time in times],
        "y": [rounded(sum(ys) / len(ys)) for ys in values],
    }
    if band and len(tracks) > 1:
        series |= {"lo": [rounded(min(ys)) for ys in values]}
        series |= {"hi": [rounded(max(ys)) for ys in values]}
    return series


def shared_steps(tracks: list[dict[int, Any]], count: int) -> list[int]:
    """Return the steps at which every run that got so far has a value, at most `count` of them.

    A mean over a changing set of runs would show the differences between runs as jumps.
    """
    ends = [max(track) for track in tracks]
    every = sorted({step for track in tracks for step in track})
    shared = [
        step
        for step in every
        if all(step in track for track, end in zip(tracks, ends, strict=True) if end >= step)
    ]
    return thin(shared if len(shared) > 1 else sorted(tracks[0]), count)


def thin(steps: list[int], count: int) -> list[int]:
    """Return at most `count` steps, evenly spread, with the first and the last."""
    if len(steps) <= count:
        return steps
    indices = {round(k * (len(steps) - 1) / (count - 1)) for k in range(count)}
    return [steps[index] for index in sorted(indices)]


def rounded(value: float) -> float:
    """Round to what a plot can show: five digits."""
    return float(f"{value:.5g}")
