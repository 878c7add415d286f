"""The measurement of views: each peer makes the views it is asked for, and the record is whole."""

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from fastssl.errors import ConfigError
from fastssl.profiling import views
from fastssl.profiling.measure import Measured
from fastssl.profiling.peers import PEERS, Work, pillow_strong

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
NEEDS = {"dali": "nvidia.dali", "ffcv": "ffcv"}


def work(count: int = 48, size: int = 32) -> Work:
    images = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return Work(images, size, 16, 4, MEAN, STD)


def have(name: str) -> bool:
    return name not in NEEDS or find_spec(NEEDS[name].split(".")[0]) is not None


SLOW = {"ffcv": pytest.mark.slow}  # it compiles its pipeline


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW.get(n, ())) for n in PEERS])
def test_a_peer_makes_two_views_of_each_image_again_and_again(name: str) -> None:
    if not have(name):
        pytest.skip(f"{name} is not installed")
    peer = PEERS[name](work(), 1)
    try:
        assert [peer.epoch(), peer.epoch()] == [96, 96]
    finally:
        peer.close()


@pytest.mark.slow
@pytest.mark.skipif(not have("ffcv"), reason="ffcv is not installed")
def test_ffcv_makes_views_of_the_size_asked_for_of_larger_images() -> None:
    peer = PEERS["ffcv"](replace(work(size=40), size=32), 1)
    try:
        for weak, strong in peer._loader:
            assert weak.shape == strong.shape == (16, 3, 32, 32)
    finally:
        peer.close()


def test_ours_makes_two_views_of_each_image() -> None:
    ours = views.Ours(work(), 2)
    assert [ours.epoch(), ours.epoch()] == [96, 96]
    assert 0 < views.draw_share(ours, batches=3) < 1


def test_the_kernel_for_devices_makes_two_views_of_each_image() -> None:
    ours = views.OnDevice(work(), "cpu")
    assert [ours.epoch(), ours.epoch()] == [96, 96]


def test_a_device_has_a_row_and_a_ratio_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastssl.engine import devices

    real = views.OnDevice
    monkeypatch.setattr(views, "BYTES", 1)
    monkeypatch.setattr(views, "OnDevice", lambda work, device: real(work, "cpu"))
    monkeypatch.setattr(devices, "choose_device", lambda wanted, rank: None)
    options = {"against": [], "threads": [1], "batch": 8, "repetitions": 1, "seconds": 0.0}
    record = views.run(options, device="cuda")
    names = [(result["name"], result["threads"]) for result in record["results"]]
    assert names == [("fastssl", 1), ("fastssl torch", 0)]
    assert set(record["ratio"]) == {"torch"} and record["settings"]["device"] == "cuda"


def test_a_device_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="tpu"):
        views.run(device="tpu")


def test_the_plain_pipeline_changes_the_image_and_covers_a_square() -> None:
    from PIL import Image

    image = Image.fromarray(work(1).images[0])
    made = [np.asarray(pillow_strong(image)) for _ in range(20)]
    assert sum((m == (125, 123, 114)).all(axis=2).any() for m in made) == 20


def test_a_record_tells_rates_ratios_and_where_the_bottleneck_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "BYTES", 1)
    record = views.run(against=["pil"], threads=[1, 2], batch=8, repetitions=2, seconds=0.0)
    json.dumps(record)
    assert record["what"] == "views 32" and set(record["ratio"]) == {"pil"}
    names = [(result["name"], result["threads"]) for result in record["results"]]
    assert names == [("pil", 1), ("fastssl", 1), ("pil", 2), ("fastssl", 2)]
    for result in record["results"]:
        assert result["unit"] == "views/s" and result["rate"] > 0 and result["spread"] >= 0
        assert result["cpu_us"] >= 0
    ours, pil = record["results"][3]["rate"], record["results"][2]["rate"]
    assert record["ratio"]["pil"] == pytest.approx(ours / pil, rel=0.01)
    assert "loader_threads" in record["says"] or "batch" in record["says"]
    moved = ours * (3 * 3072 + 2 * 12288) / 2 / 1e9
    assert record["memory"]["moved"] == pytest.approx(moved, abs=0.01)
    assert record["memory"]["copy"] > 0.1 and record["memory"]["unit"] == "GB/s"


@pytest.mark.parametrize(
    ("one", "two", "share", "memory", "wanted"),
    [
        (100.0, 190.0, 0.02, 0.2, "bound by its arithmetic: it moves 20% of the bytes"),
        (100.0, 190.0, 0.02, 0.7, "bound by memory"),
        (100.0, 110.0, 0.02, 0.2, "2 threads give only 1.1 times the rate of 1"),
        (100.0, 190.0, 0.08, 0.2, "Drawing takes 8%"),
    ],
)
def test_the_sentence_says_what_bounds_the_rate(
    one: float, two: float, share: float, memory: float, wanted: str
) -> None:
    measured = {"fastssl 1": Measured((one,), 1.0), "fastssl 2": Measured((two,), 2.0)}
    assert wanted in views._bottleneck(views.Options(), measured, share, memory)


@pytest.mark.parametrize(
    "asked", [{"size": 33}, {"threads": []}, {"against": ["pill"]}, {"sizes": 32}], ids=str
)
def test_impossible_options_are_told_before_anything_is_measured(asked: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        views.run(asked)
