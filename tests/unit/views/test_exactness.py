"""Both kernels against Pillow: not one differing pixel."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.views import OPS, Recipe, apply, apply_op, draw, kernel_torch, recipes
from pipelines.views.ops import HEAD, parameters
from tests import pillow_views
from tests.real_data import CIFAR10, PHOTOS, needs_cifar10, needs_photos

MEAN, STD = pillow_views.LEVEL
KERNELS = ("cpu", "torch")
SIZES = [(32, 32), (96, 96), (41, 57)]
FIXED = ("AutoContrast", "Equalize", "Identity")  # a magnitude changes nothing


def run(kernel: str, images: np.ndarray, rows: np.ndarray, recipe: Recipe) -> np.ndarray:
    """The views as bytes."""
    if kernel == "cpu":
        made = apply(images, [rows], [recipe], mean=MEAN, std=STD, threads=2)[0]
    else:
        batch, table = torch.from_numpy(images), torch.from_numpy(rows)
        made = kernel_torch.apply(batch, [table], [recipe], MEAN, STD)[0]
        made = made.permute(0, 2, 3, 1).numpy()
    return np.rint(made).astype(np.uint8)


def one_op(kernel: str, name: str, images: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    size = images.shape[1:3]
    recipe = Recipe(name, False, 0, size, 1, False)
    rows = np.zeros((len(images), recipe.columns), np.int32)
    rows[:, HEAD] = OPS[name].code
    rows[:, HEAD + 1 :] = [parameters(OPS[name].code, float(v), size) for v in magnitudes]
    return run(kernel, images, rows, recipe)


def photos(count: int, size: tuple[int, int], seed: int) -> np.ndarray:
    """Random images of several kinds: noise, few levels, dull, smooth, one flat channel."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    images[1::5] = images[1::5] // 64 * 64
    images[2::5] = images[2::5] // 5 + 90
    images[3::5] = np.sort(images[3::5], axis=2)
    images[4::5, :, :, 1] = 77
    return images


def magnitudes(name: str, count: int, seed: int) -> np.ndarray:
    """The ends of the range, its middle, whole numbers where they matter, and random values."""
    low, high = OPS[name].low, OPS[name].high
    drawn = np.random.default_rng(seed).uniform(low, high, count)
    drawn[:5] = (low, high, (low + high) / 2, low / 2 + high / 2 + 1e-9, high / 3)
    if name == "Solarize":
        drawn[5:10] = (1, 127, 128, 254.5, 255)
    return drawn


def assert_exact(kernel: str, images: np.ndarray, count: int) -> None:
    """Compare every op at `count` magnitudes; the images are gone through as often as it takes."""
    for name in OPS:
        chosen = magnitudes(name, count, seed=OPS[name].code)
        if name in FIXED:
            chosen = chosen[: len(images)]  # the same image again would show nothing new
        for start in range(0, len(chosen), len(images)):
            some = chosen[start : start + len(images)]
            batch = images[: len(some)]
            made = one_op(kernel, name, batch, some)
            wanted = [
                pillow_views.on_array(name, image, float(v))
                for image, v in zip(batch, some, strict=True)
            ]
            wrong = (made != np.stack(wanted)).any(axis=(1, 2, 3))
            assert not wrong.any(), f"{name} at {some[wrong][:5]} in {kernel}"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_op_equals_pillow(kernel: str, size: tuple[int, int]) -> None:
    assert_exact(kernel, photos(60, size, seed=3), 60)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("axis", ["TranslateX", "TranslateY"])
def test_translations_on_the_edge_of_rounding_equal_pillow(kernel: str, axis: str) -> None:
    image = photos(1, (32, 32), seed=1)
    half = np.array([shift / 32 for shift in (-3.5, -0.5, 0.5, 1.5, 6.5, 0.4999999999999999)])
    near = np.concatenate([half, np.nextafter(half, -1), np.nextafter(half, 1), half * (1 - 1e-15)])
    made = one_op(kernel, axis, np.repeat(image, len(near), axis=0), near)
    for v, got in zip(near, made, strict=True):
        np.testing.assert_array_equal(got, pillow_views.on_array(axis, image[0], float(v)), str(v))


@pytest.mark.parametrize("kernel", KERNELS)
def test_quarter_turns_and_tiny_angles_equal_pillow(kernel: str) -> None:
    angles = np.array([0, 90, 180, 270, -90, 360, 1e-17, -1e-17, 1e-14, 89.999999999, 45])
    for size in ((32, 32), (20, 33), (33, 20)):
        image = photos(1, size, seed=1)
        made = one_op(kernel, "Rotate", np.repeat(image, len(angles), axis=0), angles)
        for v, got in zip(angles, made, strict=True):
            wanted = pillow_views.on_array("Rotate", image[0], float(v))
            np.testing.assert_array_equal(got, wanted, str(v))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["Brightness", "Color", "Contrast", "Sharpness"])
def test_factors_outside_the_range_equal_pillow(kernel: str, name: str) -> None:
    factors = np.array([0.0, 1e-6, 0.01, 1.0, 1.3, 2.0, 7.5])
    images = photos(len(factors), (32, 32), seed=8)
    made = one_op(kernel, name, images, factors)
    for image, v, got in zip(images, factors, made, strict=True):
        np.testing.assert_array_equal(got, pillow_views.on_array(name, image, float(v)), str(v))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["Color", "Contrast", "Sharpness"])
def test_blends_round_twice_as_pillow_does(kernel: str, name: str) -> None:
    """Factors a few steps beside a fraction, where one rounding gives another byte than two."""
    factors = []
    for q in range(3, 60):
        factor = np.float32(2 * q // 3) / np.float32(q)
        for towards in (0.0, 1.0):
            factors.append(factor)
            factors.append(np.nextafter(factor, np.float32(towards)))
    images = photos(len(factors), (32, 32), seed=9)
    made = one_op(kernel, name, images, np.array(factors, np.float64))
    for image, v, got in zip(images, factors, made, strict=True):
        np.testing.assert_array_equal(got, pillow_views.on_array(name, image, float(v)), str(v))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (3, 3)], ids=str)
def test_tiny_images_equal_pillow(kernel: str, size: tuple[int, int]) -> None:
    assert_exact(kernel, photos(10, size, seed=4), 10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_images_of_one_color_equal_pillow(kernel: str) -> None:
    flat = np.empty((20, 16, 16, 3), np.uint8)
    flat[:] = np.random.default_rng(2).integers(0, 256, (20, 1, 1, 3), dtype=np.uint8)
    flat[0], flat[1] = 0, 255
    flat[10:, 0, 0] = 3  # all but one pixel alike
    assert_exact(kernel, flat, 20)


@pytest.mark.parametrize("kernel", KERNELS)
def test_apply_op_is_the_op_on_one_image(kernel: str) -> None:
    image = photos(1, (24, 30), seed=5)[0]
    image.flags.writeable = False
    for name in OPS:
        magnitude = OPS[name].low * 0.3 + OPS[name].high * 0.7
        made = apply_op(name, image, magnitude, kernel=kernel)
        assert made.dtype == np.uint8
        np.testing.assert_array_equal(made, pillow_views.on_array(name, image, magnitude), name)


GEOMETRIES = {  # size of the view, size of the image, padding
    "32": ((32, 32), (32, 32), 4),
    "96": ((96, 96), (96, 96), 4),
    "smaller": ((56, 56), (64, 64), 4),
    "non-square": ((24, 40), (33, 47), 3),
    "larger": ((50, 66), (48, 60), 5),
    "unpadded": ((20, 20), (32, 24), 0),
}


@pytest.mark.parametrize("augment_first", [True, False], ids=["ops-first", "crop-first"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_whole_recipes_equal_pillow(kernel: str, geometry: str, augment_first: bool) -> None:
    size, given, padding = GEOMETRIES[geometry]
    images = photos(24, given, seed=6)
    made_of = recipes(flip=True, padding=padding, size=size, augment_first=augment_first)
    where = {"seed": 2**40 + 11, "step": 2**33 + 5, "stream": 1}
    for view, recipe in enumerate(made_of.values()):
        rows = draw(recipe, **where, slots=np.arange(100, 124), view=view, size=given)
        made = run(kernel, images, rows, recipe)
        for i, image in enumerate(images):
            wanted = pillow_views.view(recipe, image, **where, slot=100 + i, view=view)
            np.testing.assert_array_equal(made[i], wanted, f"{recipe.name} view of image {i}")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [*SIZES, (224, 224), (160, 230)], ids=str)
def test_every_op_at_a_thousand_magnitudes_equals_pillow(
    kernel: str, size: tuple[int, int]
) -> None:
    assert_exact(kernel, photos(40, size, seed=13), 1000)


def photographs(size: tuple[int, int], count: int) -> np.ndarray:
    with tarfile.open(PHOTOS) as tar:
        images = []
        for member in tar:
            if member.isfile() and member.name.lower().endswith((".jpg", ".jpeg")):
                photo = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")
                images.append(np.asarray(photo.resize(size[::-1])))
            if len(images) == count:
                break
    return np.stack(images)


@pytest.mark.slow
@needs_photos
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [*SIZES, (224, 224)], ids=str)
def test_real_photographs_equal_pillow(kernel: str, size: tuple[int, int]) -> None:
    assert_exact(kernel, photographs(size, 40), 1000)


def cifar_images(count: int) -> np.ndarray:
    import pickle

    with tarfile.open(CIFAR10) as tar:
        for member in tar:
            if member.name.endswith("data_batch_1"):
                data = pickle.load(tar.extractfile(member), encoding="bytes")[b"data"][:count]
                break
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()


@pytest.mark.slow
@needs_cifar10
@pytest.mark.parametrize("kernel", KERNELS)
def test_real_small_images_equal_pillow(kernel: str) -> None:
    assert_exact(kernel, cifar_images(1000), 1000)


def assert_whole_views(
    kernel: str, images: np.ndarray, size: tuple[int, int], augment_first: bool, count: int
) -> None:
    """Compare `count` whole strong views, drawn anew in every step, with those of Pillow."""
    recipe = recipes(flip=True, padding=4, size=size, augment_first=augment_first)["strong"]
    slots = np.arange(len(images))
    for step in range(-(-count // len(images))):
        where = {"seed": 5, "step": step, "stream": 1, "view": 1}
        rows = draw(recipe, **where, slots=slots, size=images.shape[1:3])
        made = run(kernel, images, rows, recipe)
        for i, image in enumerate(images):
            wanted = pillow_views.view(recipe, image, **where, slot=i)
            np.testing.assert_array_equal(made[i], wanted, f"image {i} in step {step}")


WHOLE = [  # size of the view, size of the image, ops before the crop
    ((32, 32), (32, 32), True),
    ((96, 96), (96, 96), True),
    ((96, 96), (96, 96), False),
    ((40, 56), (41, 57), True),
    ((224, 224), (256, 256), True),
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("size", "given", "augment_first"), WHOLE, ids=str)
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=needs_photos)])
def test_a_thousand_whole_strong_views_equal_pillow(
    kernel: str, size: tuple[int, int], given: tuple[int, int], augment_first: bool, real: bool
) -> None:
    images = photographs(given, 40) if real else photos(40, given, seed=17)
    assert_whole_views(kernel, images, size, augment_first, 1000)


@pytest.mark.slow
@needs_cifar10
@pytest.mark.parametrize("kernel", KERNELS)
def test_whole_strong_views_of_small_images_equal_pillow(kernel: str) -> None:
    assert_whole_views(kernel, cifar_images(1000), (32, 32), True, 1000)
