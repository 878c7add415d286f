"""The host's memory: what one step frees is kept for the next.

By itself the C library returns large blocks to the system as soon as they are free. Every step on
a CPU would then get its activations anew, page by page and filled with zeros: with batches of a
few hundred images that was a fifth of the processor time, and more of the clock.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # the numbers of glibc's malloc.h
LARGEST = 2**30  # bytes; larger blocks still come from the system and go back to it


def keep() -> bool:
    """Keep freed memory in this process; return whether its C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, -1))
