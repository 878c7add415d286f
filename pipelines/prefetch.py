"""Prefetching: items made in a background thread, in buffers that are reused.

Who may touch a buffer, and when:

1. All buffers start in `_free`. The producer's thread acquires one (`_acquire`), and from then on
   only the producer writes to it.
2. The producer yields the item made of it. Buffer and item go into `_ready` together, and from
   then on the producer no longer touches that buffer.
3. `__next__` moves the buffer to `_held`. The consumer owns it until it requests the item after
   the next one: `HELD` = 2 items are valid at a time, the current one and the one before, so that
   a step can still read its batch while the next one is being requested.
4. `__next__` then puts the oldest held buffer back into `_free`.

So there are `ahead + HELD` buffers, and no lock is needed beside those of the two queues.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Generic, TypeVar

Buffer = TypeVar("Buffer")
Item = TypeVar("Item")

HELD = 2  # items that a consumer may use: the current one and the one before it
PATIENCE = 600.0  # seconds without an item after which the producer counts as stalled
# The patience is divided into at least this many waits, of at most a second. A process that was
# stopped for longer than the patience, by SIGSTOP or a suspended machine, uses up only one.
SLICES = 20
GRACE = 5  # waits without an item after a stop request, as a sign that the producer is stalled
CLOSING = 30.0  # seconds for which `close` waits for the thread


class Closed(Exception):
    """The consumer has closed the ring."""


class StalledError(Exception):
    """The background thread produced nothing for longer than the patience, or died."""


class Ring(Generic[Buffer, Item]):
    """An iterator over what a background thread produces, at most `ahead` items early.

    `produce` is a generator function. It calls its argument to acquire a free buffer (and waits
    there if none is free), fills it and yields the item made of it. Item k stays valid until item
    k + 2 is requested. Where `stop` returns True and no item comes, the iteration ends early.
    """

    def __init__(
        self,
        produce: Callable[[Callable[[], Buffer]], Iterator[Item]],
        make_buffer: Callable[[], Buffer],
        *,
        ahead: int,
        patience: float = PATIENCE,
        stop: Callable[[], object] = lambda: False,
    ) -> None:
        self._produce = produce
        self._stop = stop
        self._patience = patience
        self._free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()  # None: wake up
        for _ in range(ahead + HELD):
            self._free.put(make_buffer())
        self._ready: queue.SimpleQueue[tuple[Buffer, Item] | BaseException] = queue.SimpleQueue()
        self._held: deque[Buffer] = deque()  # used by the consumer's thread only
        self._filling: deque[Buffer] = deque()  # used by the producer's thread only
        self._closing = threading.Event()
        self._ended = False
        self._stalled = False
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        atexit.register(self.close)  # a thread that runs while the interpreter finalizes crashes
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        """Return itself."""
        return self

    def __next__(self) -> Item:
        """Return the next item; an error of the background thread is raised here."""
        while len(self._held) >= HELD:
            self._free.put(self._held.popleft())
        if self._ended:
            raise StopIteration
        found = self._wait()
        if isinstance(found, BaseException):
            self.close()
            raise found
        buffer, item = found
        self._held.append(buffer)
        return item

    def _wait(self) -> tuple[Buffer, Item] | BaseException:
        slices, stopping = max(SLICES, round(self._patience)), 0
        for _ in range(slices):
            try:
                return self._ready.get(timeout=self._patience / slices)
            except queue.Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    return StalledError("the thread has ended by itself")
                stopping += bool(self._stop())
                if stopping > GRACE:
                    self._stalled = True
                    return StopIteration()
        self._stalled = True
        return StalledError(f"nothing arrived for {self._patience:g} s")

    def close(self) -> None:
        """End the thread and wait for it; a stalled thread is abandoned."""
        self._ended = True
        self._closing.set()
        self._free.put(None)  # the producer may be waiting for a buffer
        if not self._stalled:
            self._thread.join(CLOSING)
        atexit.unregister(self.close)

    def _acquire(self) -> Buffer:
        buffer = self._free.get()
        if buffer is None or self._closing.is_set():
            raise Closed
        self._filling.append(buffer)
        return buffer

    def _run(self) -> None:
        try:
            # Closed also where the consumer left early: its resources end in this thread.
            with closing(self._produce(self._acquire)) as produced:  # type: ignore[type-var]
                for item in produced:
                    self._ready.put((self._filling.popleft(), item))
            self._ready.put(StopIteration())
        except Closed:
            pass
        except BaseException as error:
            self._ready.put(error)
