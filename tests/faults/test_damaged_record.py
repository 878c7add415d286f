"""An image that is damaged on disk, met by a streaming reader in the middle of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fastssl.config.resolve import load
from fastssl.engine.build_data import make_data
from pipelines.store.store import Store, open_store
from tests import runs
from tests.faults import fault_points
from tests.installed import each

STEP = 5  # in which it is met, counted from 0; checkpoints are written after 3 and 6 steps


def first_met(store: Store, step: int) -> int:
    """Return an image that no step before this one takes."""
    split, order = make_data(load("digits", runs.TINY), store, 1)

    def taken(step: int) -> set[int]:
        both = split.labeled[order.labeled(step)], split.unlabeled[order.unlabeled(step)]
        return set(np.concatenate(both).tolist())

    return min(taken(step).difference(*(taken(before) for before in range(step))))


@pytest.mark.parametrize(
    ("reader", "file", "column"),
    each(("dali", "train-00000.tar", "offset"), ("ffcv", "train.beton", "beton")),
)
def test_a_run_stops_at_a_damaged_image_and_goes_on_once_it_is_restored(
    digits_in_all_formats: Path, whole: Path, tmp_path: Path, reader: str, file: str, column: str
) -> None:
    store = open_store(shutil.copytree(digits_in_all_formats, tmp_path / "digits"))
    image = first_met(store, STEP)
    content = bytearray((store.path / file).read_bytes())
    content[int(store.records("train")[image][column]) + 100] ^= 1
    (store.path / file).write_bytes(content)

    out, message = tmp_path / "run", tmp_path / "message"
    words = [f"store={store.path}", f"reader={reader}"]
    assert runs.train(out, *words, before=fault_points.quiet(message)) == 3, message.read_text()
    text = message.read_text()
    assert f"image {image} of split train is damaged in" in text and file in text
    assert "Traceback" not in text
    assert runs.last(out)["trip"]["step"] == 3

    shutil.copy(digits_in_all_formats / file, store.path / file)
    assert runs.train(out, *words, resume=True, before=fault_points.quiet(message)) == 0, (
        message.read_text()
    )
    runs.assert_same(runs.last(whole)["model"], runs.last(out)["model"], "model")
