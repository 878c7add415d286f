"""The work on one chunk: decode, resize, encode. Runs in a worker process, or in ours."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from PIL import Image

from pipelines.convert.images import LEVELS, BadImageError, Target, encode, fit, load
from pipelines.sources import Chunk, Skipped


@dataclass(frozen=True)
class Prepared:
    """A chunk ready to be stored."""

    images: Any  # uint8 [n, S, S, 3] to store as pixels, or a list of JPEGs
    kept: list[int]  # indices of these images in the chunk
    bad: list[Skipped]
    levels: Any  # int64 [768], the sum of their histograms if they are to be measured


def prepare(chunk: Chunk, target: Target) -> Prepared:
    """Decode, resize and encode a chunk; what cannot be read is reported, not raised."""
    levels = np.zeros(LEVELS, np.int64)
    side = (target.size, target.size)
    if chunk.images is not None and chunk.images.shape[1:3] == side and target.quality is None:
        if target.measured:  # all of them as one tall image
            levels += Image.fromarray(chunk.images.reshape(-1, target.size, 3)).histogram()
        return Prepared(chunk.images, list(range(len(chunk.images))), [], levels)
    done: list[Any] = []
    kept: list[int] = []
    bad: list[Skipped] = []
    for index in range(len(chunk.labels)):
        try:
            if chunk.images is not None:
                image = Image.fromarray(chunk.images[index])
            else:
                image = load(chunk.files[index])
            how = target.resize, target.interpolation
            image = fit(image, target.size, *how, many=target.many)
        except BadImageError as error:
            bad.append(Skipped(chunk.paths[index], str(error)))
            continue
        if target.measured:
            levels += image.histogram()
        quality = target.quality
        done.append(np.asarray(image) if quality is None else encode(image, quality))
        kept.append(index)
    return Prepared(np.stack(done) if done and target.quality is None else done, kept, bad, levels)


def prepare_all(chunks: Iterable[Chunk], target: Target) -> Iterator[tuple[Chunk, Prepared]]:
    """Prepare chunks one after another in this process."""
    return ((chunk, prepare(chunk, target)) for chunk in chunks)


def main(channel: int) -> None:
    """Prepare chunks from a pipe until its other end is closed."""
    with Connection(channel) as connection:
        try:
            while True:
                chunk, target = connection.recv()
                connection.send(prepare(chunk, target))
        except (EOFError, ConnectionError):
            return
