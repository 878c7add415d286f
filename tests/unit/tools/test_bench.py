"""The peers do the same work as our code, and the records compare them."""

import copy
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastssl.algorithms.common import cpl as curriculum
from fastssl.engine.loop import train_step
from fastssl.errors import DataError
from fastssl.profiling import cpl as our_cpl
from fastssl.profiling import views as our_views
from fastssl.profiling.subjects import ConvertOptions, CplOptions, ViewsOptions
from fastssl.profiling.synthetic import make_batch, synthetic_learner, to_double
from pipelines.extras import import_problem
from tests.image_files import noise, write_flat, write_folder
from tests.installed import needs
from tools.bench import collectives, convert, cpl, photos, predict, step, views
from tools.bench.operators import convolutions, gflops
from tools.bench.process import CaseProcess
from tools.bench.reference_step import Reference
from tools.bench.subjects import PhotosOptions, PredictOptions, StepOptions
from tools.bench.view_peers import PEERS, pillow_strong

TINY = StepOptions(model="wrn-10-1", batch=2, size=8, images=50, threads=1, repetitions=1)
MARKS = {
    "dali": [needs("dali")],
    "ffcv": [needs("ffcv"), pytest.mark.slow],  # it compiles its pipeline
}


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def small_work(count=48, size=32):
    images = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return our_views.Work(images, size, 16, 4, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in PEERS])
def test_a_peer_makes_two_views_of_each_image_again_and_again(name):
    peer = PEERS[name](small_work(), 1)
    try:
        assert [peer.epoch(), peer.epoch()] == [96, 96]
    finally:
        peer.close()


@pytest.mark.slow
@needs("ffcv")
def test_ffcv_makes_views_of_the_requested_size_of_larger_images():
    peer = PEERS["ffcv"](replace(small_work(size=40), size=32), 1)
    try:
        for weak, strong in peer._loader:
            assert weak.shape == strong.shape == (16, 3, 32, 32)
    finally:
        peer.close()


def test_the_pillow_pipeline_erases_a_square():
    from PIL import Image

    image = Image.fromarray(small_work(1).images[0])
    made = [np.asarray(pillow_strong(image)) for _ in range(20)]
    assert all((m == (125, 123, 114)).all(axis=2).any() for m in made)


def test_a_record_of_views_compares_the_peers_at_most_threads(monkeypatch):
    monkeypatch.setattr(our_views, "BYTES", 1)
    options = ViewsOptions(threads=(1, 2), batch=8, repetitions=2, seconds=0.0)
    record = views.run(options, ("pil",))
    json.dumps(record)
    rates = {(row["name"], row["threads"]): row["rate"] for row in record["results"]}
    assert list(rates) == [("pil", 1), ("fastssl", 1), ("pil", 2), ("fastssl", 2)]
    expected = rates["fastssl", 2] / rates["pil", 2]
    # The ratio has two digits after the point; a process that has to wait may make it small.
    assert record["ratio"] == {"pil": pytest.approx(expected, rel=0.01, abs=0.01)}


def test_the_published_form_of_the_curriculum_decides_the_same():
    options = CplOptions(images=(400,), classes=7, batch=16)
    ours, published = our_cpl.Work(options, 400), cpl.PublishedForm(options, 400)
    for batch in ours.batches:  # the published form leaves open which of two equal positions wins
        batch.global_positions.copy_(torch.randperm(400)[:16])
    published.work.positions = [batch.global_positions for batch in ours.batches]
    for _ in range(30):
        assert torch.equal(ours.update(curriculum.curriculum), published.update())
    assert torch.equal(ours.state["marks"].long(), published.work.marks)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_record_of_the_curriculum_has_the_ratio_to_the_published_form():
    options = CplOptions(images=(100, 1000), classes=5, batch=8, repetitions=2, updates=10)
    record = cpl.run(options)
    assert set(record["ratio"]) == {"counter", "growth"}
    assert {row["name"] for row in record["results"]} == {"fastssl", "eager", "counter"}


def test_a_record_of_conversion_has_the_ratios_to_its_peers(tmp_path):
    folder = write_flat(tmp_path / "photos", count=3)
    record = convert.run(ConvertOptions(arrays=60, photos=4, folder=str(folder), repetitions=1))
    rates = {row["name"]: row["rate"] for row in record["results"]}
    expected = {"pillow"} if import_problem("ffcv") else {"ffcv", "ffcv_both_formats", "pillow"}
    assert set(record["ratio"]) == expected
    ours, theirs = rates["photos: fastssl"], rates["photos: one Pillow process"]
    assert record["ratio"]["pillow"] == pytest.approx(ours / theirs, rel=0.1, abs=0.02)


@needs("ffcv", "dali")
def test_a_record_of_photos_has_the_ratios_to_its_peers(tmp_path):
    random = np.random.default_rng(0)
    for index in range(6):
        noise((300, 280), random).save(tmp_path / f"photo{index}.jpg")
    options = PhotosOptions(folder=str(tmp_path), threads=1, batch=4, batches=2, repetitions=1)
    record = photos.run(options)
    assert set(record["ratio"]) == {"pil", "ffcv", "dali"}
    assert all(value > 0 for value in record["ratio"].values())
    units = {row["name"]: row["unit"] for row in record["results"]}
    views = ["pil", "fastssl ffcv", "fastssl dali", "fastssl resident"]
    readers = ["plain ffcv", "plain dali", "reader ffcv", "reader dali"]
    assert units == {**dict.fromkeys(views, "views/s"), **dict.fromkeys(readers, "images/s")}
    assert record["settings"]["folder"] == tmp_path.name  # no path of this machine


def test_the_plain_loop_predicts_the_same(tmp_path):
    folder = write_folder(tmp_path / "photos", classes=2, per_class=10, size=(48, 48))
    options = PredictOptions(
        folder=str(folder), images=30, model="wrn-10-1", steps=3, repetitions=1
    )
    record = predict.run(options)
    assert record["same"] == 1.0 and record["settings"]["images"] == 30
    rates = {row["name"]: row["rate"] for row in record["results"]}
    expected = rates["fastssl"] / rates["plain loop"]
    assert record["ratio"]["plain loop"] == pytest.approx(expected, rel=0.05, abs=0.01)


def test_a_folder_without_photos_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no photos"):
        photos.run(PhotosOptions(folder=str(tmp_path)))
    with pytest.raises(DataError, match="no images"):
        predict.run(PredictOptions(folder=str(tmp_path)))


def counting(start):
    calls = [start]

    def case():
        calls[0] += 1
        return calls[0], os.getpid()

    return case


def exiting():
    return lambda: os._exit(3)


def test_a_case_in_its_own_process_keeps_its_state():
    with CaseProcess(counting, 5) as case:
        first, second = case(), case()
    assert [first[0], second[0]] == [6, 7]
    assert first[1] == second[1] != os.getpid()
    assert not case.process.is_alive()


def test_a_process_that_ends_early_is_an_error():
    with CaseProcess(exiting) as case, pytest.raises(RuntimeError, match="ended before"):
        case()


def test_operations_of_a_convolution_are_counted_as_by_hand():
    conv = torch.nn.Conv2d(3, 5, 3, padding=1)
    images = torch.rand(2, 3, 8, 8, requires_grad=True)
    rows = [{"name": "aten::conv", "ms": 0.001}, {"name": "aten::add", "ms": 9.0}]
    rates = gflops(lambda: conv(images).sum().backward() or 0.0, {"one": rows})
    forward = 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)  # a multiplication and an addition each
    assert rates["one"] == round(3 * forward / 1e3, 1)  # backward: by weights and by images
    assert convolutions(rows, "ms") == 0.001 and rates["product"] > 0


def test_a_record_of_a_step_has_the_reference_and_where_the_time_goes():
    record = step.run(TINY)
    json.dumps(record)
    assert set(record["ratio"]) == {"reference", "split", "bf16"}
    assert [row["name"] for row in record["results"]][-1] == "reference"
    assert record["losses_apart"] <= step.TOLERANCE
    assert set(record["gflops"]) == {"fastssl", "reference", "product"}
    for rows in record["time"].values():
        assert rows[0]["ms"] >= rows[1]["ms"] > 0 and any("conv" in row["name"] for row in rows)
    calls = record["collectives"]["calls"]
    assert "reference spends" in record["says"] and f"{calls} collectives" in record["says"]


@pytest.mark.parametrize("algorithm", ["flexmatch", "freematch", "mixmatch"])
def test_collectives_are_counted_for_any_number_of_ranks(algorithm):
    found = {world: collectives.count("wrn-10-1", 2, 8, world, algorithm) for world in (1, 2, 8)}
    assert found[1]["calls"] == 0
    assert found[2]["calls"] == found[8]["calls"] > 2
    assert found[2]["bytes"] > 4 * 78_000  # at least the gradients
    assert not torch.distributed.is_initialized()


def test_both_steps_agree_where_pseudo_labels_decide():
    learner = synthetic_learner("wrn-10-1", 4, 60, double=True)
    with torch.no_grad():
        for net in (learner.model, learner.ema.model):
            net.classifier.weight.mul_(40)  # so that predictions are confident
    reference = Reference(copy.deepcopy(learner.model), 60, 10, learner.resolved.settings.threshold)
    for number in range(3):
        batch = to_double(make_batch(4, 8, 60, number))
        ours = train_step(learner, batch, 0).loss
        torch.testing.assert_close(ours.detach(), reference.step(batch), rtol=1e-6, atol=1e-6)
        assert torch.equal(learner.state["marks"].long(), reference.marks)
    assert (reference.marks >= 0).sum() > 10
    average = dict(learner.ema.model.named_parameters())
    torch.testing.assert_close(reference.average["classifier.weight"], average["classifier.weight"])


def test_two_steps_that_differ_are_not_timed(monkeypatch):
    monkeypatch.setattr(Reference, "thresholds", lambda self: torch.ones(self.classes))
    with pytest.raises(AssertionError, match="differ"):
        step.compare(TINY)
