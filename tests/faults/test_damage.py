"""Torn and flipped checkpoints, damaged stores: found, reported, never used."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from fastssl.engine import checkpoint
from fastssl.errors import DataError
from fastssl.tracking.run_dir import RunFolder
from pipelines.store.store import open_store
from pipelines.store.verify import verify
from tests import runs
from tests.faults import fault_points


def harm(path: Path, dice: random.Random) -> None:
    """Tear a file off, flip a bit, or zero a block of it."""
    data = bytearray(path.read_bytes())
    place = dice.randrange(len(data))
    kind = dice.choice(["tear", "flip", "zero"])
    if kind == "tear":
        data = data[:place]
    elif kind == "flip":
        data[place] ^= 1 << dice.randrange(8)
    else:
        data[place : place + 512] = bytes(b ^ 0x5A for b in data[place : place + 512])
    path.write_bytes(data)


def harmless(path: Path, original: Path) -> bool:
    """Return whether a damaged checkpoint is read; what is read must then be the original.

    A bit flipped in the padding between the parts of the archive changes nothing.
    """
    try:
        found = checkpoint.read(path)
    except DataError:
        return False
    assert bytes(checkpoint.pack(found)) == bytes(checkpoint.pack(checkpoint.read(original)))
    return True


def test_damaged_checkpoints_are_named_and_skipped(whole, tmp_path, tally, times):
    count = tally("torn or bit-flipped checkpoints")
    out = shutil.copytree(whole, tmp_path / "run")
    names = [path.name for path in checkpoint.files(RunFolder(out))]
    dice = random.Random(2)
    for _ in range(times(6, 100)):
        name = dice.choice([names[0], names[0], names[1], checkpoint.BEST])
        with count:
            harm(out / "checkpoints" / name, dice)
            if harmless(out / "checkpoints" / name, whole / "checkpoints" / name):
                continue
            message: list[str] = []
            found = checkpoint.newest(RunFolder(out), message.append)
            assert found is not None
            assert found["trip"]["step"] == (6 if name == names[0] else 8)
            assert [name in line for line in message] == ([True] if name == names[0] else [])
            if name == checkpoint.BEST:
                with pytest.raises(DataError, match="damaged"):
                    checkpoint.best(RunFolder(out))
        shutil.copy(whole / "checkpoints" / name, out / "checkpoints" / name)


def test_runs_with_a_damaged_newest_checkpoint_go_on_bit_equal(whole, tmp_path, tally, times):
    count = tally("resumed from behind a damaged checkpoint")
    dice = random.Random(3)
    for number in range(times(1, 12)):
        out = shutil.copytree(whole, tmp_path / str(number) / "run")
        (out / "summary.json").unlink()
        message = out.parent / "message"
        with count:
            newest = checkpoint.files(RunFolder(out))[0]
            harm(newest, dice)
            while harmless(newest, whole / "checkpoints" / newest.name):
                harm(newest, dice)
            assert runs.train(out, resume=True, before=fault_points.quiet(message)) == 0, (
                message.read_text()
            )
            assert "skipped" in message.read_text()
            runs.assert_same_run(whole, out)


def test_damaged_stores_are_found_or_harmless(data, whole, tmp_path, tally, times):
    count = tally("damaged bytes in a store")
    store = shutil.copytree(data / "digits", tmp_path / "digits")
    dice = random.Random(4)
    files = sorted(path for path in store.iterdir())
    wanted = times(5, 100)
    for number in range(wanted):
        path = dice.choice(files)
        with count:
            harm(path, dice)
            assert problems(store)
            if number % max(3, wanted // 24) == 0:
                train_on(store, whole, tmp_path / f"run{number}")
        shutil.copy(data / "digits" / path.name, path)
    assert not problems(store)


def problems(store: Path) -> list[str]:
    try:
        return verify(store, sample=50).problems
    except DataError as error:
        return [error.what]


def train_on(store: Path, whole: Path, out: Path) -> None:
    """A run on a damaged store stops with 3, or never met the damage and is as ever."""
    message = out.with_suffix(".message")
    code = runs.train(out, f"store={store}", before=fault_points.quiet(message))
    assert code in (0, 3), message.read_text()
    assert "Traceback" not in message.read_text()
    if code == 0:
        a, b = runs.last(whole), runs.last(out)
        runs.assert_same(a["model"], b["model"], "model")
    shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("what", ["train.npy", "index.csv", "dataset.json", "train-00000.tar"])
def test_a_store_whose_file_is_gone_or_a_folder(data, tmp_path, what):
    store = shutil.copytree(data / "digits", tmp_path / "digits")
    (store / what).unlink()
    with pytest.raises(DataError):
        open_store(store)
    (store / what).mkdir()
    with pytest.raises(DataError):
        open_store(store)
