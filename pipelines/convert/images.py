"""One image: opened upright and in RGB, resized, encoded."""

import io
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from pipelines.image_formats import open_file
from pipelines.sources import MOST_PIXELS

RESIZES = ("squash", "crop", "pad")
INTERPOLATIONS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
}
LEVELS = 3 * 256  # length of the histogram of an RGB image

_DEEP = {"I;16": 65535, "I;16L": 65535, "I;16B": 65535, "I;16N": 65535, "I": 65535}


class BadImageError(Exception):
    """A file that is not an image we can use."""


@dataclass(frozen=True)
class Target:
    """What every image of a split becomes."""

    size: int
    resize: str  # one of RESIZES
    quality: int | None  # of JPEG; None stores the pixels themselves
    measured: bool = False  # True if mean and deviation are to be measured
    many: bool = False  # True if there are enough images for the compiled resize to pay off
    interpolation: str = "bicubic"  # one of INTERPOLATIONS

    @property
    def encoding(self) -> str:
        """Name the encoding as the manifest does."""
        return "raw" if self.quality is None else "jpeg"


def load(path: str) -> Image.Image:
    """Open an image upright, in RGB, without transparency (over white), 8 bits a channel."""
    with warnings.catch_warnings(action="ignore"):
        return open_image(path)


def open_image(path: str) -> Image.Image:
    """Open an image as `load` does, but leave the global warning filters alone, for threads."""
    try:
        with open_file(path) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise BadImageError(
                    f"{width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are decoded"
                )
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image)
    except BadImageError:
        raise
    except Exception as error:  # a decoder may raise anything at all on hostile bytes
        raise BadImageError(_reason(error, path)) from None


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image that can be read"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).replace(path, "the file").split())[:200]


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn any mode into 8-bit RGB: transparent parts show white, 16 bits are scaled."""
    if image.mode in _DEEP:
        values = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode == "F":
        raise BadImageError("floating-point pixels have no agreed range")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        image = Image.alpha_composite(page, layer)
    return image if image.mode == "RGB" else image.convert("RGB")


def fit(
    image: Image.Image,
    size: int,
    resize: str,
    interpolation: str = "bicubic",
    *,
    many: bool = False,
) -> Image.Image:
    """Resize an image to size x size: squash it, crop its middle, or pad it with black.

    With `many` the work is compiled, which takes a while once; the pixels are the same.
    """
    if image.size == (size, size):
        return image
    shape, method = (size, size), INTERPOLATIONS[interpolation]
    if resize == "pad":
        return ImageOps.pad(image, shape, method, color="black")
    if many:
        from pipelines.convert.resize import resize as compiled

        bilinear = interpolation == "bilinear"
        return Image.fromarray(compiled(np.asarray(image), _box(image, resize), size, bilinear))
    return image.resize(shape, method, _box(image, resize))


def interpolation_option(interpolation: str) -> list[str]:
    """Return the words that `convert` takes for an interpolation: none for bicubic, its default."""
    return [] if interpolation == "bicubic" else ["--interpolation", interpolation]


def _box(image: Image.Image, resize: str) -> tuple[float, float, float, float]:
    """Return the part that is kept: all of an image, or the square in its middle."""
    width, height = image.size
    if resize == "squash":
        return (0.0, 0.0, float(width), float(height))
    side = min(image.size)
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side)


def encode(image: Image.Image, quality: int) -> bytes:
    """Return an image as JPEG, without the comment that its file may have had."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, comment=b"")
    return file.getvalue()


def mean_and_std(levels: npt.NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, for pixels in 0..1, from a sum of histograms."""
    levels, values = levels.reshape(3, 256), np.arange(256)
    count = max(levels[0].sum(), 1)
    mean = levels @ values / count
    variance = levels @ (values * values) / count - mean * mean
    # A constant channel would divide by zero in training.
    std = np.sqrt(np.maximum(variance, 1.0))
    return (mean / 255).round(6).tolist(), (std / 255).round(6).tolist()
