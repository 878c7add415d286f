"""The measurement of conversion measures what it says, on a few images."""

import pytest

from fastssl.errors import ConfigError, DataError
from fastssl.profiling.convert import run
from pipelines.convert import ffcv
from tests.pictures import write_flat


def test_a_small_measurement_leaves_a_whole_record(tmp_path):
    photos = write_flat(tmp_path / "photos", count=3)
    given = {"arrays": 60, "photos": 4, "folder": str(photos), "repetitions": 1}
    record = run(given)
    assert record["what"] == "convert"
    assert record["settings"]["arrays"] == 60
    rates = {result["name"]: result["rate"] for result in record["results"]}
    assert all(result["unit"] == "images/s" for result in record["results"])
    assert all(value > 0 for value in rates.values())
    assert "photos: one Pillow process" in rates
    wanted = {"ffcv", "ffcv_both_formats", "pillow"} if ffcv.installed() else {"pillow"}
    assert set(record["ratio"]) == wanted
    ours, theirs = rates["photos: fastssl"], rates["photos: one Pillow process"]
    assert record["ratio"]["pillow"] == pytest.approx(ours / theirs, rel=0.1, abs=0.02)


def test_photographs_are_drawn_where_none_are_given():
    record = run(arrays=0, photos=2, repetitions=1)
    assert len(record["results"]) == 2
    assert record["settings"]["pictures"].startswith("drawn")


def test_what_cannot_be_measured(tmp_path):
    with pytest.raises(ConfigError, match="no option 'speed'"):
        run(speed=9)
    with pytest.raises(ConfigError, match="positive"):
        run(workers=0)
    with pytest.raises(DataError, match="no pictures"):
        run(arrays=0, folder=str(tmp_path))


def test_the_tool_gives_its_photographs_to_the_conversion():
    from pathlib import Path

    from tools.profile_throughput import commands

    out = Path("out")
    assert commands(["convert"], Path("here"), out) == [
        ["profile", "convert", "--folder", "here", "--save", "out"]
    ]
    assert commands(["convert"], None, out) == [["profile", "convert", "--save", "out"]]


def test_enough_photographs_are_converted_to_outlast_the_start():
    from fastssl.profiling.convert import Options

    assert Options().photos == 3_000
