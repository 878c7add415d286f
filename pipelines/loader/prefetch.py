"""Work done ahead in a background thread, in buffers that go round."""

from __future__ import annotations

import atexit
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Buffer = TypeVar("Buffer")
Item = TypeVar("Item")

HELD = 2  # items a consumer may hold: the one it works on and the one before it
PATIENCE = 600.0  # seconds after which nobody believes that another item will come
SLICES = 20  # parts that the patience is spent in: a process put to sleep loses one of them


class Closed(Exception):
    """The consumer has gone."""


class StalledError(Exception):
    """The background thread has given nothing for longer than anybody waits."""


class Ring(Generic[Buffer, Item]):
    """An iterator over what a background thread produces, at most `ahead` items early.

    `produce` is a generator function: it calls its argument for a free buffer (and waits there),
    fills it and yields the item made of it. The buffer of an item is not touched again before the
    consumer asks for the item after the next one: item k is whole until item k + 2 is asked for.
    """

    def __init__(
        self,
        produce: Callable[[Callable[[], Buffer]], Iterator[Item]],
        make_buffer: Callable[[], Buffer],
        *,
        ahead: int,
        patience: float = PATIENCE,
    ) -> None:
        self._produce = produce
        self._patience = patience
        self._free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        for _ in range(ahead + HELD):
            self._free.put(make_buffer())
        self._ready: queue.SimpleQueue[tuple[Buffer, Item] | BaseException] = queue.SimpleQueue()
        self._held: deque[Buffer] = deque()
        self._taken: deque[Buffer] = deque()
        self._closing = threading.Event()
        self._ended = False
        self._stalled = False
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        atexit.register(self.close)  # no thread may run while the interpreter is taken down
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        """Return itself."""
        return self

    def __next__(self) -> Item:
        """Return the next item; an error in the background is raised here."""
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
        for _ in range(SLICES):
            try:
                return self._ready.get(timeout=self._patience / SLICES)
            except queue.Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    return StalledError("the thread has ended by itself")
        self._stalled = True
        return StalledError(f"nothing came for {self._patience:g} s")

    def close(self) -> None:
        """End the thread and wait for it; one that hangs is left behind."""
        self._ended = True
        self._closing.set()
        self._free.put(None)
        if not self._stalled:
            self._thread.join()
        atexit.unregister(self.close)

    def _take(self) -> Buffer:
        buffer = self._free.get()
        if buffer is None or self._closing.is_set():
            raise Closed
        self._taken.append(buffer)
        return buffer

    def _run(self) -> None:
        produced = self._produce(self._take)
        try:
            for item in produced:
                self._ready.put((self._taken.popleft(), item))
            self._ready.put(StopIteration())
        except Closed:
            pass
        except BaseException as error:
            self._ready.put(error)
        finally:
            close = getattr(produced, "close", None)
            if close is not None:
                close()
