"""The two kernels: one result, any input array, compiled, and without a wait on a GPU."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.errors import ConfigError
from pipelines.views import Recipe, apply, apply_op, centered, draw, kernel_torch, recipes
from pipelines.views.apply_views import _in_parallel
from tests.fake_cuda import fake_cuda, no_host_wait
from tests.installed import needs_compiler

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
SIZE = (32, 32)
BOTH = list(recipes(flip=True, padding=4, size=SIZE).values())


def images(count: int = 40, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def drawn(made_of: list[Recipe], count: int = 40, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    where = {"seed": 5, "step": 3, "stream": 1, "slots": np.arange(count), "size": size}
    return [draw(recipe, view=view, **where) for view, recipe in enumerate(made_of)]


@pytest.mark.parametrize("augment_first", [True, False])
@pytest.mark.parametrize(("size", "given"), [((32, 32), (32, 32)), ((40, 24), (44, 30))])
def test_both_kernels_give_the_same_floats(
    size: tuple[int, int], given: tuple[int, int], augment_first: bool
) -> None:
    both = recipes(flip=True, padding=4, size=size, augment_first=augment_first)
    made_of = [both["weak"], both["strong"], both["strong"], both["weak"]]
    pixels, rows = images(60, given), drawn(made_of, 60, given)
    here = apply(pixels, rows, made_of, mean=MEAN, std=STD, threads=2)
    there = kernel_torch.apply(
        torch.from_numpy(pixels), [torch.from_numpy(r) for r in rows], made_of, MEAN, STD
    )
    for one, other in zip(here, there, strict=True):
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert other.dtype == torch.float32 and other.shape == (60, 3, *size)
        np.testing.assert_array_equal(one, other.permute(0, 2, 3, 1).numpy())


def test_values_are_normalized_as_torch_does() -> None:
    pixels = images(4)
    plain = torch.from_numpy(pixels).float().div(255)
    wanted = plain.sub(torch.tensor(MEAN)).div(torch.tensor(STD))
    np.testing.assert_array_equal(centered(pixels, SIZE, MEAN, STD), wanted.numpy())


def test_the_middle_of_a_larger_image_is_cut() -> None:
    pixels = images(3, (40, 37))
    wanted = centered(pixels[:, 4:36, 2:34], SIZE, MEAN, STD)
    np.testing.assert_array_equal(centered(pixels, SIZE, MEAN, STD), wanted)
    with pytest.raises(ConfigError, match="does not fit"):
        centered(pixels, (41, 37), MEAN, STD)


def kinds(pixels: np.ndarray, folder: Path) -> dict[str, np.ndarray]:
    """The same pixels as every kind of array that a reader may give."""
    fixed = pixels.copy()
    fixed.flags.writeable = False
    pixels.tofile(folder / "pixels")
    mapped = np.memmap(folder / "pixels", np.uint8, "r", shape=pixels.shape)
    changeable = np.memmap(folder / "pixels", np.uint8, "r+", shape=pixels.shape)
    strided = np.repeat(pixels, 2, axis=0)[::2]
    return {
        "writeable": pixels,
        "read-only": fixed,
        "mapped": mapped,
        "mapped to write": changeable,
        "strided": strided,
    }


@pytest.mark.parametrize("backwards", [False, True])
def test_any_kind_of_array_gives_the_same_views(tmp_path: Path, backwards: bool) -> None:
    pixels, rows = images(), drawn(BOTH)
    before = pixels.copy()
    wanted = apply(pixels.copy(), rows, BOTH, mean=MEAN, std=STD)
    given = list(kinds(pixels, tmp_path).values())
    for some in reversed(given) if backwards else given:
        for threads in (1, 2):
            made = apply(some, rows, BOTH, mean=MEAN, std=STD, threads=threads)
            for one, other in zip(made, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(some, before)  # a kernel never writes into its images


def test_draws_may_be_read_only() -> None:
    rows = drawn(BOTH)
    for row in rows:
        row.flags.writeable = False
    apply(images(), rows[:1], BOTH[:1], mean=MEAN, std=STD)
    apply(images(), rows, BOTH, mean=MEAN, std=STD)


@pytest.mark.parametrize(("threads", "count"), [(2, 1), (3, 7), (8, 8), (2, 61)])
def test_threads_change_nothing(threads: int, count: int) -> None:
    pixels, rows = images(count), drawn(BOTH, count)
    wanted = apply(pixels, rows, BOTH, mean=MEAN, std=STD)
    made = apply(pixels, rows, BOTH, mean=MEAN, std=STD, threads=threads)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("threads", "count", "pieces"), [(1, 40, 1), (2, 15, 1), (2, 40, 5), (2, 999, 8)]
)
def test_a_piece_has_at_least_eight_images(threads: int, count: int, pieces: int) -> None:
    bounds: list[tuple[int, int]] = []
    _in_parallel(bounds.append, count, threads)
    bounds.sort()
    assert len(bounds) == pieces and bounds[0][0] == 0 and bounds[-1][1] == count
    assert all(one[1] == next_one[0] for one, next_one in pairwise(bounds))


def test_an_empty_batch_makes_empty_views() -> None:
    made = apply(images(0), drawn(BOTH, 0), BOTH, mean=MEAN, std=STD, threads=2)
    assert [view.shape for view in made] == [(0, 32, 32, 3)] * 2


def test_given_arrays_are_filled_and_nothing_else() -> None:
    pixels, rows = images(), drawn(BOTH)
    nonfinite = np.full((3, 2, 40, 32, 32, 3), 9.0, np.float32)
    out = list(nonfinite[1])
    made = apply(pixels, rows, BOTH, mean=MEAN, std=STD, out=out, threads=2)
    assert all(one is other for one, other in zip(made, out, strict=True))
    assert (nonfinite[0] == 9).all() and (nonfinite[2] == 9).all()
    for one, other in zip(made, apply(pixels, rows, BOTH, mean=MEAN, std=STD), strict=True):
        np.testing.assert_array_equal(one, other)


def test_wrong_arrays_are_refused() -> None:
    pixels, rows = images(), drawn(BOTH)
    with pytest.raises(ValueError, match="uint8"):
        apply(pixels.astype(np.float32), rows, BOTH, mean=MEAN, std=STD)
    with pytest.raises(ValueError, match="uint8"):
        apply(np.zeros((40, *SIZE, 4), np.uint8), rows, BOTH, mean=MEAN, std=STD)
    with pytest.raises(ValueError, match="rows"):
        apply(pixels, rows[::-1], BOTH, mean=MEAN, std=STD)
    short = [np.empty((40, 32, 32, 2), np.float32)] * 2
    with pytest.raises(ValueError, match="output"):
        apply(pixels, rows, BOTH, mean=MEAN, std=STD, out=short)


def test_two_views_of_one_recipe_differ() -> None:
    strong = [BOTH[1], BOTH[1]]
    first, second = apply(images(), drawn(strong), strong, mean=MEAN, std=STD)
    assert (first != second).any(axis=(1, 2, 3)).mean() > 0.95


@pytest.mark.parametrize("name", ["Rotat", "rotate"])
def test_an_unknown_op_or_kernel_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no op is named"):
        apply_op(name, images(1)[0], 1.0)
    with pytest.raises(ConfigError, match="no kernel is named"):
        apply_op("Rotate", images(1)[0], 1.0, kernel="gpu")


def test_a_second_start_compiles_nothing() -> None:
    """What this process compiled, or found compiled, the next one only loads."""
    apply(images(8), drawn(BOTH, 8), BOTH, mean=MEAN, std=STD)
    code = """if True:
        from pipelines.views.sample import _draw
        from pipelines.views.kernel_cpu import views
        for compiled in (_draw, views):
            print(compiled.stats.cache_hits.total(), compiled.stats.cache_misses.total())"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["1", "0", "1", "0"]


@needs_compiler
def test_the_torch_kernel_compiles_whole() -> None:
    """One op with Cutout, by Inductor: the compiled code must give the very same floats."""
    size = (12, 12)
    made_of = [recipes(flip=True, padding=2, size=size, ops=1)["strong"]]
    pixels, rows = images(56, size), drawn(made_of, 56, size)
    wanted = apply(pixels, rows, made_of, mean=MEAN, std=STD)[0]
    run = torch.compile(kernel_torch.make, fullgraph=True, dynamic=False)
    tables = kernel_torch.constants(torch.device("cpu"), MEAN, STD)
    made = run(
        torch.from_numpy(pixels), [torch.from_numpy(r) for r in rows], [plan(made_of[0])], *tables
    )[0]
    np.testing.assert_array_equal(made.permute(0, 2, 3, 1).numpy(), wanted)


def plan(recipe: Recipe) -> kernel_torch.Plan:
    return (*recipe.size, recipe.padding, recipe.ops, recipe.cutout, recipe.augment_first)


@pytest.mark.parametrize("augment_first", [True, False])
def test_the_torch_kernel_never_waits_on_cuda(augment_first: bool) -> None:
    made_of = list(recipes(flip=True, padding=4, size=SIZE, augment_first=augment_first).values())
    with fake_cuda():
        pixels = torch.empty(8, *SIZE, 3, dtype=torch.uint8, device="cuda")
        rows = [torch.empty(8, r.columns, dtype=torch.int32, device="cuda") for r in made_of]
        kernel_torch.constants(pixels.device, MEAN, STD)  # put there before the first step
        with no_host_wait():
            made = kernel_torch.apply(pixels, rows, made_of, MEAN, STD)
        for view in made:
            assert view.device.type == "cuda" and view.dtype == torch.float32
            assert view.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_floats() -> None:
    pixels, rows = images(), drawn(BOTH)
    wanted = apply(pixels, rows, BOTH, mean=MEAN, std=STD)
    made = kernel_torch.apply(
        torch.from_numpy(pixels).cuda(), [torch.from_numpy(r).cuda() for r in rows], BOTH, MEAN, STD
    )
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(one.permute(0, 2, 3, 1).cpu().numpy(), other)
