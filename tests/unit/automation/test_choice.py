"""The better run is named, with the images that chose it."""

import json

from fastssl.automation import choice
from pipelines.store.store import open_store


def row(model, accuracy, **more):
    return {"model": model, "run": model, "test images": 50, "accuracy": accuracy, **more}


def test_a_worse_or_equal_fine_tuned_model_is_not_chosen():
    for accuracy in (79.0, 80.0):
        best, why = choice.choose([row("probe", 80.0), row("fine-tuned", accuracy)])
        assert best["model"] == "probe" and "50 test images" in why
    assert why.startswith("both reach 80.00 %")


def test_a_better_fine_tuned_model_is_chosen_and_the_bias_is_stated():
    best, why = choice.choose([row("probe", 80.0), row("fine-tuned", 82.0)])
    assert best["model"] == "fine-tuned"
    assert why.startswith("82.00 % against 80.00 %") and "slightly too high" in why


def test_validation_images_choose_if_there_are_any():
    rows = [row("probe", 80.0, validation=70.0), row("fine-tuned", 90.0, validation=60.0)]
    best, why = choice.choose(rows)
    assert best["model"] == "probe" and why.startswith("70.00 % against 60.00 % on the validation")


def test_a_single_model_is_the_best():
    assert choice.choose([row("probe", None)]) == (row("probe", None), "the only model")


def test_the_accuracy_is_that_of_eval_and_of_the_validation_images(trained, data, tmp_path):
    store = open_store(data / "digits")
    found = choice.measure("probe", trained, store)
    summary = json.loads((trained / "summary.json").read_text())
    assert abs(found["accuracy"] + summary["best_error"] - 100) < 0.3
    assert found["test images"] == 360 and "validation" not in found
    for name in ("config.yaml", "environment.json", "checkpoints"):
        (tmp_path / name).symlink_to(trained / name)
    lines = [{"kind": "eval", "step": 1, "validation_error": error} for error in (30.0, 20.0, 25.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert choice.measure("probe", tmp_path, store)["validation"] == 80.0
