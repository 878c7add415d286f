"""Runs and conversions that are killed at any instant, gone on with, and end bit-equal."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.store.verify import verify
from tests import runs
from tests.faults import fault_points
from tests.faults.conftest import Tally
from tests.image_files import write_folder

LIVES = 6  # kills in the life of one run
RATES = {"images_per_s", "data_wait"}  # what may differ, beside seconds, between equal runs


def summary(out: Path) -> dict[str, object]:
    content = json.loads((out / "summary.json").read_text())
    return {k: v for k, v in content.items() if k not in RATES and "seconds" not in k}


def assert_nothing_lost(whole: Path, out: Path) -> None:
    runs.assert_same_run(whole, out)
    assert summary(whole) == summary(out)
    kept, found = ({p.name for p in (x / "checkpoints").iterdir()} for x in (whole, out))
    # One killed before its last pruning has an older checkpoint more; no half file stays.
    assert kept <= found and all(name.endswith(".ckpt") for name in found)


def finish(out: Path) -> None:
    message = out.parent / "message"
    assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
        message.read_text()
    )


def lives(
    count: Tally, wanted: int, whole: Path, folder: Path, kill: Callable[[Path], bool]
) -> None:
    """Kill runs, each several times in its life, until there were enough kills; none may show."""
    while count.tried < wanted:
        out = folder / str(count.tried) / "run"
        out.parent.mkdir(exist_ok=True)
        killed = 0
        for _ in range(min(LIVES, wanted - count.tried)):
            killed += kill(out)
        count.tried += killed
        finish(out)
        assert_nothing_lost(whole, out)
        count.survived += killed
        shutil.rmtree(out.parent)


@pytest.mark.parametrize("kind", fault_points.PLACES)
def test_killed_at_a_place(kind, whole, tmp_path, tally, times):
    dice = random.Random(kind)

    def kill(out: Path) -> bool:
        action = partial(dice.choice(fault_points.PLACES[kind]), dice.randint(1, 2))
        child = runs.start(
            out, resume=True, before=fault_points.quiet(out.parent / "message", action)
        )
        return died(child, out)

    lives(tally(f"killed {kind}"), times(1, 30), whole, tmp_path, kill)


def test_killed_from_outside_at_a_random_time(whole, tmp_path, tally, times):
    dice = random.Random(0)
    longest = _duration(tmp_path / "timed")

    def kill(out: Path) -> bool:
        child = runs.start(out, resume=True, before=fault_points.quiet(out.parent / "message"))
        child.join(dice.uniform(0, longest))
        child.kill()
        return died(child, out)

    lives(tally("killed from outside at random times"), times(2, 80), whole, tmp_path, kill)


def died(child: Any, out: Path) -> bool:
    """Return True if a run was killed; one that ended by itself must have succeeded."""
    code = runs.ended(child)
    assert code in (0, -signal.SIGKILL), (out.parent / "message").read_text()
    return code != 0


def _duration(out: Path) -> float:
    out.mkdir()
    began = time.monotonic()
    finish(out / "run")
    return time.monotonic() - began


def test_a_summary_of_an_earlier_life_is_not_taken_for_the_end(whole, tmp_path):
    out = tmp_path / "run"
    before = fault_points.quiet(tmp_path / "message", partial(fault_points.interrupt_at, 5))
    assert runs.train(out, before=before) == 143
    assert summary(out)["status"] == "interrupted"
    before = fault_points.quiet(tmp_path / "message", partial(fault_points.before_summary, 1))
    assert runs.train(out, resume=True, before=before) == -signal.SIGKILL
    finish(out)
    assert summary(out) == summary(whole)


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("killed") / "pets", 3, 12, size=(60, 50))


def convert(pets: Path, out: Path, *actions) -> int:
    words = [str(pets), str(out), "--size", "32", "--format", "dali", "--workers", "1"]
    before = fault_points.quiet(out.parent / "message", *actions)
    return runs.ended(runs.command("convert", *words, "--test-fraction", "0.25", before=before))


def test_a_conversion_killed_at_any_instant(pets, tmp_path, tally, times):
    count = tally("killed during conversion")
    (tmp_path / "whole").mkdir()
    assert convert(pets, tmp_path / "whole" / "out") == 0
    seal = (tmp_path / "whole" / "out" / "dataset.json").read_bytes()
    dice = random.Random(1)
    for number in range(times(1, 40)):
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        action = partial(dice.choice(fault_points.CONVERSION), dice.randint(1, 5))
        with count:
            code = convert(pets, out, action)
            assert code in (0, -signal.SIGKILL), (out.parent / "message").read_text()
            count.tried -= code == 0
            count.survived -= code == 0
            if not out.exists():
                assert convert(pets, out) == 0, (out.parent / "message").read_text()
            assert (out / "dataset.json").read_bytes() == seal
            assert verify(out).problems == []
            assert sorted(p.name for p in out.parent.iterdir()) == ["message", "out"]
            shutil.rmtree(out.parent)
