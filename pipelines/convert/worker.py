"""The work on one chunk: decode, resize, encode. Runs in a worker process, or in ours."""

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from PIL import Image

from pipelines.convert.images import BadImageError, Moments, Target, encode, fit, load
from pipelines.sources import Chunk, Skipped


@dataclass(frozen=True)
class Prepared:
    """A chunk ready to be stored."""

    images: Any  # uint8 [n, S, S, 3] to store as pixels, or a list of JPEGs
    kept: list[int]  # indices of these images in the chunk
    bad: list[Skipped]
    moments: Moments


def prepare(chunk: Chunk, target: Target) -> Prepared:
    """Decode, resize and encode a chunk; what cannot be read is reported, not raised."""
    moments = Moments.zero()
    if chunk.images is not None and _unchanged(chunk.images.shape, target):
        if target.measured:  # all of them as one tall image
            moments.update(Image.fromarray(chunk.images.reshape(-1, target.size, 3)))
        return Prepared(chunk.images, list(range(len(chunk.images))), [], moments)
    done: list[Any] = []
    kept: list[int] = []
    bad: list[Skipped] = []
    for index in range(len(chunk.labels)):
        try:
            image = _open(chunk, index)
            image = fit(image, target.size, target.resize, many=target.many)
        except BadImageError as error:
            bad.append(Skipped(chunk.paths[index], str(error)))
            continue
        if target.measured:
            moments.update(image)
        quality = target.quality
        done.append(np.asarray(image) if quality is None else encode(image, quality))
        kept.append(index)
    return Prepared(np.stack(done) if done and target.quality is None else done, kept, bad, moments)


def _unchanged(shape: tuple[int, ...], target: Target) -> bool:
    return target.quality is None and shape[1:3] == (target.size, target.size)


def _open(chunk: Chunk, index: int) -> Image.Image:
    if chunk.images is not None:
        return Image.fromarray(chunk.images[index])
    assert chunk.files is not None
    return load(chunk.files[index])


def main(channel: int) -> None:
    """Prepare chunks from a socket until its other end is closed."""
    with Connection(channel) as connection:
        try:
            while True:
                chunk, target = connection.recv()
                connection.send(prepare(chunk, target))
        except (EOFError, ConnectionError):
            return
