"""Draw the errors of a record, with a panel for each task: by minutes, or by step without times."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 56, 150, 16, 44

Result = dict[str, Any]
Scale = Callable[[float], float]


def draw(results: list[Result]) -> str:
    """Return the curves as SVG: readable on white and on black, with names at their ends."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        panels.setdefault(result.get("task", ""), []).append(result)
    height = HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    colours: dict[str, str] = {}  # one for a name in all panels
    for place, (task, members) in enumerate(panels.items()):
        drawn = panel(members, colours)
        if task:
            title = f'<text x="{LEFT}" y="{TOP - 5}" font-weight="bold">{escape(task)}</text>'
            drawn = [f'<g transform="translate(0 {HEIGHT * place})">', title, *drawn, "</g>"]
        parts += drawn
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(results: list[Result], colours: dict[str, str]) -> list[str]:
    """Draw the axes and curves of one task."""
    end = max(at(result)[-1] for result in results)
    values = [y for r in results for key in ("y", "lo", "hi") for y in r["curve"].get(key, [])]
    low, high = 5 * (min(values) // 5), 5 * (max(values) // 5 + 1)

    def x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / end, 1)

    def y(error: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - error) / (high - low), 1)

    parts = []
    for error in range(int(low), int(high) + 1, 10 if high - low > 30 else 5):
        parts.append(f'<path d="M{LEFT} {y(error)}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(error) + 4}" text-anchor="end">{error}</text>')
    for tick in ticks(end):
        place = HEIGHT - BOTTOM + 18
        parts.append(f'<text x="{x(tick)}" y="{place}" text-anchor="middle">{tick:,g}</text>')
    unit = "minutes" if "minutes" in results[0]["curve"] else "step"
    parts.append(f'<text x="{x(end / 2)}" y="{HEIGHT - 8}" text-anchor="middle">{unit}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        "test error, %</text>"
    )
    return parts + curves(results, x, y, colours)


def at(result: Result) -> list[float]:
    """Return where the points of a curve are on the horizontal axis."""
    curve = result["curve"]
    found: list[float] = curve.get("minutes", curve["x"])
    return found


def ticks(end: float) -> list[float]:
    """Return at most eight round numbers from 0 to the end of an axis."""
    power = 10.0 ** math.floor(math.log10(end / 7.5))
    pace = next(n * power for n in (1, 2, 5, 10) if end <= 7.5 * n * power)
    return [n * pace for n in range(int(end / pace * (1 + 1e-9)) + 1)]


def curves(results: list[Result], x: Scale, y: Scale, colours: dict[str, str]) -> list[str]:
    """Draw bands, lines and names; names that would touch are moved apart."""
    parts, taken = [], -100.0
    for result in sorted(results, key=lambda result: -float(result["curve"]["y"][-1])):
        line, places = result["curve"], [x(value) for value in at(result)]
        colour = colours.setdefault(result["name"], COLOURS[len(colours) % len(COLOURS)])
        if "lo" in line:
            there = [f"{s} {y(v)}" for s, v in zip(places, line["hi"], strict=True)]
            back = [f"{s} {y(v)}" for s, v in zip(places, line["lo"], strict=True)]
            path = "M" + "L".join([*there, *reversed(back)]) + "Z"
            parts.append(f'<path d="{path}" fill="{colour}" opacity="0.15"/>')
        path = "M" + "L".join(f"{s} {y(v)}" for s, v in zip(places, line["y"], strict=True))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        taken = max(taken + 15, y(line["y"][-1]) + 4)
        name = escape(result["name"].split()[0])
        parts.append(
            f'<text x="{WIDTH - RIGHT + 8}" y="{taken}" fill="{colour}">'
            f"{name} {line['y'][-1]:.1f}</text>"
        )
    return parts
