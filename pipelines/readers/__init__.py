"""Readers: indices in, uint8 images out.

Here belong the `Reader` interface, the registry of readers, one module for each reader, and the
choice of one (`choose`). A reader returns the images of a split in exactly the order requested,
repeats included, so that order, resume and ranks are the same with every reader. Sampling,
views, normalization and prefetching do not belong here.

To add a reader, write a subclass of `Reader` in a new module and add its `ReaderInfo` to the
table in `base.py`, which the configuration and `fastssl list readers` read. `reader=auto` chooses
`resident`, or a reader whose entry names a `format` that the store has.
"""

from pipelines.readers.auto import Choice, choose
from pipelines.readers.base import READERS, Reader, ReaderInfo
from pipelines.store.records import Indices, Pixels

__all__ = [
    "READERS",
    "Choice",
    "Indices",
    "Pixels",
    "Reader",
    "ReaderInfo",
    "choose",
]
