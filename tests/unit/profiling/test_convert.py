"""The record of conversion, on a few images."""

import json

import pytest

from fastssl.errors import DataError
from fastssl.profiling import convert
from fastssl.profiling.subjects import ConvertOptions
from pipelines.extras import import_problem


def test_a_record_of_conversion_has_arrays_and_photos():
    record = convert.run(ConvertOptions(arrays=60, photos=4, repetitions=1))
    json.dumps(record)
    names = ["arrays: fastssl, tar"]
    names += (
        ["arrays: fastssl, beton", "arrays: fastssl, both"] if not import_problem("ffcv") else []
    )
    assert [row["name"] for row in record["results"]] == [*names, "photos: fastssl"]
    assert all(row["rate"] > 0 and row["unit"] == "images/s" for row in record["results"])
    assert record["settings"]["source"].startswith("generated") and record["ratio"] == {}


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no images"):
        convert.run(ConvertOptions(arrays=0, folder=str(tmp_path)))
