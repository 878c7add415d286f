import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from pipelines.errors import ConfigError
from pipelines.sampling.order import Order
from pipelines.sampling.rng import permutation, random_uint64

LABELED = [4, 23, 21, 31, 2, 32, 10, 24]
UNLABELED = [21913, 15255, 49483, 40406, 41839, 13250, 42939, 31494]


def test_a_pass_shows_every_unlabeled_image_at_most_once_and_drops_the_tail():
    order = Order(0, labeled=40, unlabeled=100, batch=4, unlabeled_batch=28)
    for first in (0, 3, 6):
        seen = np.concatenate([order.unlabeled(first + k) for k in range(3)])
        assert len(np.unique(seen)) == len(seen) == 84
        assert seen.min() >= 0 and seen.max() < 100


def test_no_unlabeled_image_stands_twice_in_a_batch_even_when_the_batch_is_the_set():
    order = Order(3, labeled=4, unlabeled=28, batch=4, unlabeled_batch=28)
    for step in range(5):
        assert sorted(order.unlabeled(step)) == list(range(28))
    assert (order.unlabeled(0) != order.unlabeled(1)).any()


def test_labeled_passes_run_on_where_the_batch_is_larger_than_the_set():
    order = Order(0, labeled=40, unlabeled=0, batch=64, unlabeled_batch=0)
    run = np.concatenate([order.labeled(step) for step in range(5)])
    passes = run.reshape(8, 40)  # 5 batches of 64 are 8 passes of 40
    assert (np.sort(passes, axis=1) == np.arange(40)).all()
    assert len({tuple(row) for row in passes}) == 8


def test_a_step_is_the_same_whatever_was_asked_before():
    whole = Order(7, 40, 1000, 64, 448)
    run = [(whole.labeled(k), whole.unlabeled(k)) for k in range(9)]
    for step in (8, 2, 5, 0, 8):
        fresh = Order(7, 40, 1000, 64, 448)
        np.testing.assert_array_equal(fresh.labeled(step), run[step][0])
        np.testing.assert_array_equal(whole.labeled(step), run[step][0])
        np.testing.assert_array_equal(fresh.unlabeled(step), run[step][1])
        np.testing.assert_array_equal(whole.unlabeled(step), run[step][1])


def test_seeds_and_streams_differ():
    one, other = Order(0, 500, 500, 64, 64), Order(1, 500, 500, 64, 64)
    assert (one.unlabeled(0) != other.unlabeled(0)).any()
    assert (one.labeled(0) != other.labeled(0)).any()
    assert (one.labeled(0) != one.unlabeled(0)).any()


def test_the_order_never_changes_between_versions():
    # Published runs name a seed: these numbers may change with a new major version alone.
    order = Order(0, 40, 50_000, 8, 8)
    assert order.labeled(0).tolist() == LABELED
    assert order.unlabeled(3).tolist() == UNLABELED


def test_numpy_s_global_state_plays_no_part():
    np.random.seed(1)
    before = permutation(0, "x", 0, 100)
    np.random.seed(2)
    np.testing.assert_array_equal(permutation(0, "x", 0, 100), before)


def test_purposes_and_numbers_are_apart():
    drawn = [random_uint64(0, purpose, number, 4) for purpose in ("a", "b") for number in (0, 1)]
    assert len(np.unique(np.concatenate(drawn))) == 16


def test_a_shuffle_is_even():
    shuffled = np.stack([permutation(seed, "even", 0, 8) for seed in range(4000)])
    for column in shuffled.T:
        counts = np.bincount(column, minlength=8)
        assert abs(counts - 500).max() < 100  # 4.8 standard deviations


def test_too_few_images_for_a_batch():
    with pytest.raises(ConfigError, match="448 different unlabeled images"):
        Order(0, 40, 447, 64, 448)
    Order(0, 40, 448, 64, 448)
    with pytest.raises(ConfigError, match="no image"):
        Order(0, 0, 448, 64, 448)


def test_the_first_steps_may_have_labeled_images_alone():
    whole, late = Order(7, 40, 1000, 64, 448), Order(7, 40, 1000, 64, 448, labeled_only=3)
    for step in range(6):
        np.testing.assert_array_equal(late.labeled(step), whole.labeled(step))
        np.testing.assert_array_equal(
            late.unlabeled(step), whole.unlabeled(step)[: 448 * (step > 2)]
        )


def test_without_unlabeled_images_there_is_no_stream():
    assert len(Order(0, 40, 0, 64, 448).unlabeled(5)) == 0
    assert len(Order(0, 40, 100, 64, 0).unlabeled(5)) == 0


def test_what_is_kept_is_four_bytes_an_image():
    order = Order(0, 10, 200_000, 8, 448)
    order.unlabeled(0)
    tracemalloc.start()
    try:
        order.unlabeled(10_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4.1 * 200_000


def test_the_order_needs_no_torch():
    code = "import sys, pipelines.sampling.order; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
