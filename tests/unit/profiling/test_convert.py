"""The records of conversion, photos and predictions, on a few images."""

import json

import numpy as np
import pytest

from fastssl.errors import DataError
from fastssl.profiling import convert, photos, predict
from fastssl.profiling.subjects import ConvertOptions, PhotosOptions, PredictOptions
from pipelines.convert import ffcv
from tests.pictures import noise, write_folder


def test_a_record_of_conversion_has_arrays_and_photos():
    record = convert.run(ConvertOptions(arrays=60, photos=4, repetitions=1))
    json.dumps(record)
    names = ["arrays: fastssl, tar"]
    names += ["arrays: fastssl, beton", "arrays: fastssl, both"] if ffcv.installed() else []
    assert [row["name"] for row in record["results"]] == [*names, "photos: fastssl"]
    assert all(row["rate"] > 0 and row["unit"] == "images/s" for row in record["results"])
    assert record["settings"]["source"].startswith("generated") and record["ratio"] == {}


def test_a_record_of_photos_has_views_and_decoding_of_every_reader(tmp_path):
    random = np.random.default_rng(0)
    for index in range(6):
        noise((300, 280), random).save(tmp_path / f"photo{index}.jpg")
    options = PhotosOptions(folder=str(tmp_path), threads=1, batch=4, batches=2, repetitions=1)
    record = photos.run(options)
    json.dumps(record)
    units = {row["name"]: row["unit"] for row in record["results"]}
    assert units == {
        **dict.fromkeys(["fastssl ffcv", "fastssl dali", "fastssl resident"], "views/s"),
        **dict.fromkeys(["reader ffcv", "reader dali"], "images/s"),
    }
    assert all(row["rate"] > 0 for row in record["results"])
    assert record["settings"]["folder"] == tmp_path.name  # no path of this machine


def test_a_record_of_predictions(tmp_path):
    folder = write_folder(tmp_path / "photos", classes=2, per_class=10, size=(48, 48))
    options = PredictOptions(
        folder=str(folder), images=30, model="wrn-10-1", steps=3, repetitions=1
    )
    record = predict.run(options)
    json.dumps(record)
    assert record["what"] == "predict" and record["settings"]["images"] == 30
    assert [row["name"] for row in record["results"]] == ["fastssl"]


def test_an_empty_folder_is_an_error(tmp_path):
    empty = str(tmp_path)
    with pytest.raises(DataError, match="no images"):
        convert.run(ConvertOptions(arrays=0, folder=empty))
    with pytest.raises(DataError, match="no photos"):
        photos.run(PhotosOptions(folder=empty))
    with pytest.raises(DataError, match="no images"):
        predict.run(PredictOptions(folder=empty))
