"""Random numbers by key: a pure function of (seed, purpose, number), the same on every machine.

Only the raw words of numpy's Philox are used: their stream is guaranteed never to change, that of
`Generator.permutation` and its like is not.
"""

import numpy as np
import numpy.typing as npt

WORD = 2**64 - 1


def words(seed: int, purpose: str, number: int, count: int) -> npt.NDArray[np.uint64]:
    """Return `count` random words; `purpose` (up to 8 letters) keeps users of one seed apart."""
    key = np.array([seed & WORD, int.from_bytes(purpose.encode(), "little")], dtype=np.uint64)
    counter = np.array([0, number, 0, 0], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.asarray(raw, dtype=np.uint64)


def permutation(seed: int, purpose: str, number: int, size: int) -> npt.NDArray[np.uint32]:
    """Return the numbers below `size`, shuffled.

    Each number rides in the low half of a random word; sorting the words shuffles them with no
    more memory than the words themselves.
    """
    mixed = words(seed, purpose, number, size)
    mixed &= np.uint64(0xFFFFFFFF_00000000)
    mixed |= np.arange(size, dtype=np.uint64)
    mixed.sort()
    return mixed.astype(np.uint32)
