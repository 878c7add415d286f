"""The record of what checkpoints cost."""

from fastssl.profiling import checkpoint


def test_the_record_says_what_a_checkpoint_takes_from_training():
    made = checkpoint.run(model="wrn-10-1", batch=2, size=16, images=100, repetitions=1)
    assert made["what"] == "checkpoint" and made["settings"]["every"] == 5000
    assert [row["unit"] for row in made["results"]] == ["s"] * 3
    step, snapshot, write = (row["rate"] for row in made["results"])
    assert min(step, snapshot, write) > 0
    assert made["ratio"]["training_thread"] == snapshot / (5000 * step)
    assert made["ratio"]["training_thread"] < made["ratio"]["with_the_write"]
    assert made["bytes"] > 300_000
