"""Views as Pillow makes them: the oracle of both kernels."""

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from pipelines.views import OPS, Recipe

MASK = 0xFFFFFFFF
NAMES = {OPS[name].code: name for name in OPS}
LEVEL = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)  # mean and std that leave bytes as they are


def op(name: str, image: Image.Image, v: float) -> Image.Image:
    """One op as the reference calls Pillow."""
    width, height = image.size
    affine = {
        "ShearX": (1, v, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, v, 1, 0),
        "TranslateX": (1, 0, v * width, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, v * height),
    }
    if name in affine:
        return image.transform(image.size, Image.Transform.AFFINE, affine[name])
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return getattr(ImageEnhance, name)(image).enhance(v)
    return {
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
        "Identity": lambda: image,
        "Posterize": lambda: ImageOps.posterize(image, int(v)),
        "Rotate": lambda: image.rotate(v),
        "Solarize": lambda: ImageOps.solarize(image, v),
    }[name]()


def on_array(name: str, image: np.ndarray, v: float) -> np.ndarray:
    return np.asarray(op(name, Image.fromarray(image), v))


def philox(seed: int, counter: tuple[int, int, int, int]) -> list[int]:
    """Philox4x32-10 with Python's own integers."""
    a, b, c, d = counter
    k, m = seed & MASK, (seed >> 32) & MASK
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k, second & MASK, (first >> 32) ^ d ^ m, first & MASK
        k, m = (k + 0x9E3779B9) & MASK, (m + 0xBB67AE85) & MASK
    return [a, b, c, d]


def words(seed: int, step: int, stream: int, slot: int, view: int, count: int) -> list[int]:
    made: list[int] = []
    for block in range(-(-count // 4)):
        place = (stream << 24) | (view << 16) | block
        made += philox(seed, (place, slot, step & MASK, step >> 32))
    return made


def crop(image: Image.Image, recipe: Recipe, drawn: list[int]) -> Image.Image:
    pixels = np.asarray(image)
    if recipe.flip and drawn[2] >> 31:
        pixels = pixels[:, ::-1]
    p, (height, width) = recipe.padding, recipe.size
    pixels = np.pad(pixels, ((p, p), (p, p), (0, 0)), mode="reflect")
    top = drawn[0] * (pixels.shape[0] - height + 1) >> 32
    left = drawn[1] * (pixels.shape[1] - width + 1) >> 32
    return Image.fromarray(pixels[top : top + height, left : left + width].copy())


def cutout(image: Image.Image, drawn: list[int]) -> Image.Image:
    width, height = image.size
    side = drawn[3] / 2**32 * 0.5 * width
    if side <= 0:
        return image
    x0 = int(max(0, drawn[4] / 2**32 * width - side / 2))
    y0 = int(max(0, drawn[5] / 2**32 * height - side / 2))
    box = (x0, y0, min(width, x0 + side), min(height, y0 + side))
    image = image.copy()
    ImageDraw.Draw(image).rectangle(box, (125, 123, 114))
    return image


def augment(image: Image.Image, recipe: Recipe, drawn: list[int]) -> Image.Image:
    for k in range(recipe.ops):
        name = NAMES[drawn[6 + 2 * k] * len(NAMES) >> 32]
        low, high = OPS[name].low, OPS[name].high
        image = op(name, image, low + (high - low) * (drawn[7 + 2 * k] / 2**32))
    return cutout(image, drawn) if recipe.cutout else image


def view(
    recipe: Recipe, image: np.ndarray, *, seed: int, step: int, stream: int, slot: int, view: int
) -> np.ndarray:
    """The whole view, drawn and made without a line of the package's draw or kernels."""
    drawn = words(seed, step, stream, slot, view, 6 + 2 * recipe.ops)
    made = Image.fromarray(image)
    if recipe.augment_first:
        return np.asarray(crop(augment(made, recipe, drawn), recipe, drawn))
    return np.asarray(augment(crop(made, recipe, drawn), recipe, drawn))
