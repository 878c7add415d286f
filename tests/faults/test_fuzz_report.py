"""Run folders of other people: a report leaves them out or shows them, within bounds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fastssl import report
from fastssl.config.yaml_files import LARGEST_EXPANDED, read_yaml
from fastssl.errors import DataError
from fastssl.report.content import build
from tests.fake_runs import write_run
from tests.faults.fuzzing import bounded, corrupted

GROWTH = 256 << 20  # bytes by which one file may raise the peak of memory
FILES = ("config.yaml", "summary.json", "environment.json", "metrics.jsonl")
ODD = [
    None,
    True,
    -1,
    0,
    2**63,
    10**300,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x1b[2J",
    "\ud800",
]
ODD += [
    "=1+1",
    "<b>",
    "[x](y)",
    "x" * 5000,
    [],
    {},
    [[]],
    {"a": 1},
    "digits",
    "flexmatch",
    "../../x",
]


def value(dice: random.Random, depth: int = 3) -> Any:
    """Return something that JSON can hold, and that no run writes."""
    kind = dice.randrange(8) if depth else 0
    if kind == 6:
        return [value(dice, depth - 1) for _ in range(dice.randrange(5))]
    if kind == 7:
        return {str(value(dice, 0)): value(dice, depth - 1) for _ in range(dice.randrange(4))}
    return dice.choice(ODD)


def changed(line: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return an object some of whose values make no sense, or are gone."""
    found = {key: value(dice) if dice.random() < 0.2 else old for key, old in line.items()}
    for key in [key for key in found if dice.random() < 0.05]:
        del found[key]
    return found | ({str(value(dice, 0)): value(dice)} if dice.random() < 0.3 else {})


def aliases(dice: random.Random) -> str:
    """Return YAML whose anchors refer to each other at random, also to themselves."""
    lines = []
    for n in range(dice.randrange(2, 24)):
        names = [f"*k{dice.randrange(n + (dice.random() < 0.1))}" if n else "x"] * dice.choice(
            [2, 9]
        )
        if dice.random() < 0.3:
            inner = "{" + ", ".join(f"a{m}: {name}" for m, name in enumerate(names)) + "}"
        else:
            inner = "[" + ", ".join(names) + "]"
        lines.append(f"k{n}: &k{n} {inner}")
    return "\n".join(lines) + "\n"


def fuzzed(name: str, sound: bytes, dice: random.Random) -> bytes:
    """Return the content of a file after an accident or an attack."""
    kind = dice.randrange(4)
    if kind == 0:
        return corrupted(sound, dice)
    if kind == 1:
        return dice.choice(
            [b"", b"[" * 50_000, b"{" * 9, dice.randbytes(200), b'"' + b"x" * 10_000]
        )
    text = sound.decode()
    if name == "config.yaml":
        lines = [
            f"{line.split(':')[0]}: {json.dumps(value(dice))}" if dice.random() < 0.1 else line
            for line in text.splitlines()
            if dice.random() > 0.02
        ]
        return ("\n".join(lines) + "\n" + aliases(dice) * (kind == 2)).encode(errors="replace")
    rows = [json.loads(line) for line in (text.splitlines() if name == "metrics.jsonl" else [text])]
    return "\n".join(json.dumps(changed(row, dice)) for row in rows).encode()


def expansion(found: Any) -> int:
    """Return the characters and values that a report would write out."""
    size, waiting = 0, [found]
    while waiting:
        item = waiting.pop()
        size += 1 + (len(item) if isinstance(item, str) else 0)
        assert size < 4 * LARGEST_EXPANDED, "aliases stand for more than is allowed"
        waiting += item if isinstance(item, list) else []
        waiting += [*item, *item.values()] if isinstance(item, dict) else []
    return size


def test_yaml_with_aliases(tmp_path: Path, tally: Any, times: Any) -> None:
    count = tally("fuzzed YAML with aliases")
    path, dice, refused = tmp_path / "config.yaml", random.Random(16), 0
    for _ in range(times(60, 2000)):
        path.write_text(aliases(dice))
        with count, bounded(growth=GROWTH):
            try:
                expansion(read_yaml(path, DataError))
            except DataError as error:
                refused += 1
                assert error.exit_code == 3
    count.facts["refused"] = refused
    assert 0 < refused < count.tried


def test_files_of_a_run(tmp_path: Path, tally: Any, times: Any) -> None:
    count = tally("fuzzed files of a run folder, read by report")
    write_run(tmp_path / "sound", evals=4, logs=4, classes=3, confusion=True)
    sound = {name: (tmp_path / "sound" / name).read_bytes() for name in FILES}
    runs, dice, left_out = tmp_path / "runs", random.Random(18), 0
    write_run(runs / "good", evals=4, logs=4, classes=3)
    (runs / "bad").mkdir()
    for number in range(times(40, 1000)):
        for name in FILES:
            # Most files are sound: else nearly every run would be left out for its configuration.
            whole = dice.random() < 0.6
            content = sound[name] if whole else fuzzed(name, sound[name], dice)
            (runs / "bad" / name).write_bytes(content)
        with count, bounded(growth=GROWTH):
            content_ = build([runs], tmp_path / "r.html")
            assert "good" in [run.name for run in content_.found.runs]
            left_out += bool(content_.found.problems)
            for format in [*report.FORMATS] if number % 10 == 0 else ["json"]:
                document = report.FORMATS[format](content_)
                assert "\x1b" not in document
    count.facts["left_out"] = left_out
    assert 0 < left_out < count.tried


def test_lists_of_sweeps(tmp_path: Path, tally: Any, times: Any) -> None:
    count = tally("fuzzed sweep.json, read by report")
    write_run(tmp_path / "good", evals=2, logs=2, classes=3)
    row = {"name": "x", "data": "digits", "labels": 40, "algorithm": "uda", "keys": {"lr": 1}}
    dice = random.Random(7)
    for _ in range(times(40, 600)):
        cells = [changed(row, dice) for _ in range(3)] if dice.random() < 0.8 else value(dice)
        text = json.dumps({"cells": cells} if dice.random() < 0.9 else cells)
        (tmp_path / "sweep.json").write_text(text)
        with count, bounded(growth=GROWTH):
            content = build([tmp_path], tmp_path / "r.html")
            for format in report.FORMATS.values():
                assert "\x1b" not in format(content)
