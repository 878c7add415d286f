"""TensorBoard gets more than scalars, read back from its own files."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import runs


def test_views_confidences_confusion_and_results_are_there(data, tmp_path):
    assert runs.train(tmp_path / "run", "tensorboard=true") == 0
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    tags = found.Tags()
    assert set(tags["images"]) == {"views", "eval/confusion"}
    assert tags["histograms"] == ["eval/confidence"]
    assert {"train/loss", "eval/error", "pseudo/accuracy", "speed/data_wait"} <= set(
        tags["scalars"]
    )
    best = found.Scalars("result/best_error")[0].value
    errors = [event.value for event in found.Scalars("eval/error")]
    assert best == min(errors)
