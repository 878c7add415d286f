"""Random numbers by key: a pure function of (seed, purpose, number), the same on every machine.

Philox is counter-based: the numbers of step k follow from its key and counter alone, without the
numbers of the steps before it. So a resumed run needs no generator state, and R ranks draw what
one process would draw. Only the raw output of NumPy's Philox is used: NumPy guarantees that it
never changes, which it does not guarantee for `Generator.permutation` and the like.
"""

import numpy as np
import numpy.typing as npt

MAX_UINT64 = 2**64 - 1


def random_uint64(seed: int, purpose: str, number: int, count: int) -> npt.NDArray[np.uint64]:
    """Return `count` random integers.

    `purpose` (up to 8 letters) is half of the key, so that two uses of one seed, such as the
    split and the order, are independent. `number` selects a block of the stream: a step, a pass
    or a class.
    """
    key = np.array([seed & MAX_UINT64, int.from_bytes(purpose.encode(), "little")], dtype=np.uint64)
    counter = np.array([0, number, 0, 0], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.asarray(raw, dtype=np.uint64)


def permutation(seed: int, purpose: str, number: int, size: int) -> npt.NDArray[np.uint32]:
    """Return the integers below `size` in random order."""
    # Random high half, index in the low half: sorting in place shuffles the indices and needs no
    # memory beside the random numbers themselves.
    keyed = random_uint64(seed, purpose, number, size)
    keyed &= np.uint64(0xFFFFFFFF_00000000)
    keyed |= np.arange(size, dtype=np.uint64)
    keyed.sort()
    return keyed.astype(np.uint32)
