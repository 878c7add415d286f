"""FFCV's `.beton`, made by ffcv's own DatasetWriter around bytes that are encoded already."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.extras import import_ffcv

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

SMALLEST_PAGE = 1 << 21  # bytes; ffcv accepts none smaller


def page_size(shape: tuple[int, int]) -> int:
    """Return a page that holds any image of this shape, were its JPEG larger than its pixels."""
    room = 2 * 3 * shape[0] * shape[1]
    return max(SMALLEST_PAGE, 1 << (room - 1).bit_length())


def load() -> None:
    """Import ffcv, which takes seconds, before the conversion is timed."""
    # A plain import would leave torch with one thread: a run that converts its digits first
    # would train at half the rate.
    import_ffcv()
    import_module("ffcv.writer")


class BetonWriter:
    """Writes one split as a `.beton` with the fields image, label and index.

    DatasetWriter would encode JPEG again, by OpenCV, in processes of its own. Its beginning
    (`prepare`), its pages (`MemoryAllocator`) and its end (`finalize`) are used, and the bytes put
    between are ours: one pass over the source, and the same file every time.
    """

    def __init__(
        self, folder: Path, split: str, encoding: str, shape: tuple[int, int], most: int
    ) -> None:
        import_ffcv()
        from ffcv.fields import IntField, RGBImageField
        from ffcv.fields.rgb_image import IMAGE_MODES
        from ffcv.memory_allocator import MemoryAllocator
        from ffcv.writer import DatasetWriter

        self.name = f"{split}.beton"
        fields = {"image": RGBImageField(), "label": IntField(), "index": IntField()}
        page = page_size(shape)
        self._writer = DatasetWriter(str(folder / self.name), fields, page_size=page)
        self._writer.num_samples = 1
        self._writer.prepare()
        # The shared memory is for processes we do not start, and too small in many containers.
        self._writer.metadata_sm.close()
        self._writer.metadata_sm.unlink()
        self._metadata = np.zeros(most, self._writer.metadata_type)
        self._sizes = np.zeros(most, np.uint32)
        self._metadata["f0"]["mode"] = IMAGE_MODES["raw" if encoding == "raw" else "jpg"]
        self._metadata["f0"]["height"], self._metadata["f0"]["width"] = shape
        start = self._writer.metadata_start + self._metadata.nbytes
        self._allocator = MemoryAllocator(self._writer.fname, start, page)
        self._allocator.__enter__()
        self._count = 0
        self._finished = False

    def add(self, images: Bytes | Sequence[bytes], labels: Integers, first: int) -> Any:
        """Append images; return the offset of each in the file."""
        part = slice(first, first + len(labels))
        if isinstance(images, np.ndarray):
            offsets: Any = self._put_pixels(images.reshape(len(images), -1))
            self._sizes[part] = images[0].size
        else:
            offsets = [self._put(image) for image in images]
            self._sizes[part] = [len(image) for image in images]
        self._count = part.stop
        rows = self._metadata[part]
        rows["f0"]["data_ptr"] = offsets
        rows["f1"] = labels
        rows["f2"] = np.arange(first, self._count)
        return rows["f0"]["data_ptr"]

    def _put(self, data: Any) -> int:
        """Write bytes and return where they stand in the file."""
        self._allocator.allocations.clear()  # a list of tuples: `close` writes the table itself
        offset, room = self._allocator.malloc(len(data))
        room.data[:] = data
        return int(offset)

    def _put_pixels(self, images: Bytes) -> Integers:
        """Write images of one size, as many at once as the page has room for."""
        offsets = np.empty(len(images), np.int64)
        count, size = images.shape
        done = 0
        while done < count:
            room = self._allocator.space_left_in_page // size or self._allocator.page_size // size
            piece = images[done : done + room]
            start = self._put(np.ascontiguousarray(piece).reshape(-1))
            offsets[done : done + room] = start + size * np.arange(len(piece))
            done += len(piece)
        return offsets

    def close(self) -> str:
        """Write what comes last and return the name of the file."""
        from ffcv.types import ALLOC_TABLE_TYPE

        self._allocator.__exit__(None, None, None)
        self._writer.metadata_sm = SimpleNamespace(buf=self._metadata[: self._count].tobytes())
        self._writer.header["num_samples"] = self._count
        self._writer.finalize([])
        table = np.zeros(self._count, ALLOC_TABLE_TYPE)
        table["sample_id"] = np.arange(self._count)
        table["ptr"] = self._metadata["f0"]["data_ptr"][: self._count]
        table["size"] = self._sizes[: self._count]
        with open(self._writer.fname, "ab") as file:  # `finalize` leaves it to come last
            file.write(table.tobytes())
        self._finished = True
        return self.name

    def abandon(self) -> None:
        """Remove a file that is unfinished; after `close` there is none."""
        self._allocator.fp.close()
        if not self._finished:
            Path(self._writer.fname).unlink(missing_ok=True)
