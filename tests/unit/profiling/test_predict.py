"""The measurement of predict: both sides do the same work and say the same."""

from pathlib import Path

import pytest

import fastssl
from fastssl.errors import ConfigError, DataError
from tests.pictures import write_folder


def test_both_sides_say_the_same_of_every_picture(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", classes=2, per_class=10, size=(48, 48))
    record = fastssl.profile(
        "predict", folder=str(folder), pictures=30, model="wrn-10-1", steps=3, repetitions=1
    )
    assert record["what"] == "predict" and record["same"] == 1.0
    assert [one["name"] for one in record["results"]] == ["fastssl", "plain loop"]
    assert all({"rate", "unit", "spread"} <= one.keys() for one in record["results"])
    rates = {one["name"]: one["rate"] for one in record["results"]}
    expected = rates["fastssl"] / rates["plain loop"]
    assert record["ratio"]["plain loop"] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ConfigError),
        ({"folder": ".", "colour": 3}, ConfigError),
        ({"folder": ".", "pictures": 0}, ConfigError),
    ],
)
def test_mistakes_are_told(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        fastssl.profile("predict", **options)


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no pictures"):
        fastssl.profile("predict", folder=str(tmp_path))
