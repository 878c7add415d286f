"""The measurement of views counts what it makes, and its record adds up."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from fastssl.errors import ConfigError
from fastssl.profiling import measure, views
from fastssl.profiling.measure import Measured
from fastssl.profiling.subjects import ViewsOptions


def small_work(count=48, size=32):
    images = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return views.Work(images, size, 16, 4, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def test_both_kernels_make_two_views_of_each_image():
    maker = views.ViewMaker(small_work(), 2)
    assert [maker.epoch(), maker.epoch()] == [96, 96]
    assert views.DeviceViewMaker(small_work(), "cpu").epoch() == 96


def test_the_share_of_sampling_is_its_time_over_that_of_all_work(monkeypatch):
    now = [0.0]

    def taking(seconds, real):
        def work(*given, **named):
            now[0] += seconds
            return real(*given, **named)

        return work

    for module in (views, measure):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(views, "draw", taking(1.0, views.draw))  # twice a batch
    monkeypatch.setattr(views, "apply", taking(6.0, views.apply))
    maker = views.ViewMaker(small_work(), 2)
    assert views.sample_share(maker, batches=3) == pytest.approx(0.25)


def test_a_record_of_views_adds_up(monkeypatch):
    monkeypatch.setattr(views, "BYTES", 1)
    record = views.run(ViewsOptions(threads=(1, 2), batch=8, repetitions=2, seconds=0.0))
    json.dumps(record)
    assert record["what"] == "views 32" and record["ratio"] == {}
    assert [(row["name"], row["threads"]) for row in record["results"]] == [
        ("fastssl", 1),
        ("fastssl", 2),
    ]
    for row in record["results"]:
        assert row["unit"] == "views/s" and row["rate"] > 0 and row["spread"] >= 0
    moved = record["results"][1]["rate"] * (3 * 3072 + 2 * 12288) / 2 / 1e9
    assert record["memory"]["moved"] == pytest.approx(moved, abs=0.01)
    assert record["memory"]["copy"] > 0.01


def test_a_device_has_its_own_row_and_ratio(monkeypatch):
    real = views.DeviceViewMaker
    monkeypatch.setattr(views, "BYTES", 1)
    monkeypatch.setattr(views, "DeviceViewMaker", lambda work, device: real(work, "cpu"))
    monkeypatch.setattr(views, "choose_device", lambda device, rank: None)
    options = ViewsOptions(threads=(1,), batch=8, repetitions=1, seconds=0.0, device="cuda")
    record = views.run(options)
    assert [row["name"] for row in record["results"]] == ["fastssl", "fastssl torch"]
    assert set(record["ratio"]) == {"torch"} and record["settings"]["device"] == "cuda"


def test_a_device_or_size_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setattr(views, "BYTES", 1)
    with pytest.raises(ConfigError, match="tpu"):
        views.run(ViewsOptions(device="tpu"))
    with pytest.raises(ConfigError, match="33 pixels"):
        views.run(ViewsOptions(size=33))


@pytest.mark.parametrize(
    ("one", "two", "share", "memory", "expected"),
    [
        (100.0, 190.0, 0.02, 0.2, "bound by its arithmetic: it moves 20% of the bytes"),
        (100.0, 190.0, 0.02, 0.7, "bound by memory"),
        (100.0, 110.0, 0.02, 0.2, "2 threads give only 1.1 times the rate of 1"),
        (100.0, 190.0, 0.08, 0.2, "Sampling takes 8%"),
    ],
)
def test_the_summary_names_what_bounds_the_rate(one, two, share, memory, expected):
    measured = {"fastssl 1": Measured((one,), 1.0), "fastssl 2": Measured((two,), 2.0)}
    assert expected in views.bottleneck(ViewsOptions(), measured, share, memory)
