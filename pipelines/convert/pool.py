"""Worker processes that prepare chunks in parallel and return them in order."""

import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from queue import SimpleQueue

from pipelines.convert.images import Target
from pipelines.convert.worker import Prepared, prepare_all
from pipelines.errors import ResourceError
from pipelines.sources import Chunk

AHEAD = 4  # chunks per worker that may be prepared before they are written


class Pool:
    """Worker processes, each served by a thread of ours; with one worker, none at all.

    `ProcessPoolExecutor` is not used: its processes import the caller's `__main__` again, so that
    a script without a `__main__` guard would convert in every worker, and they outlive a killed
    parent. Ours are fresh interpreters that end when their pipe is closed. They are not forks:
    a fork of a process with threads may hang.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # a thread that waits for a killed worker gets an EOFError
            for worker in self._workers:
                worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.channel.close()
            worker.process.wait()

    def map(self, chunks: Iterable[Chunk], target: Target) -> Iterator[tuple[Chunk, Prepared]]:
        """Prepare chunks in parallel and yield them in their order."""
        if self.workers <= 1:
            yield from prepare_all(chunks, target)
            return
        while len(self._workers) < self.workers:
            self._workers.append(_Worker())
            self._idle.put(self._workers[-1])
        pending: deque[tuple[Chunk, Future[Prepared]]] = deque()
        for chunk in chunks:
            pending.append((chunk, self._threads.submit(self._prepare, chunk, target)))
            # The bound keeps a slow disk from filling the memory with prepared chunks.
            if len(pending) >= AHEAD * self.workers:
                first, future = pending.popleft()
                yield first, future.result()
        for first, future in pending:
            yield first, future.result()

    def _prepare(self, chunk: Chunk, target: Target) -> Prepared:
        worker = self._idle.get()
        try:
            return worker.prepare(chunk, target)
        finally:
            # Even if it is dead: a thread that waits for a worker must not wait forever.
            self._idle.put(worker)


class _Worker:
    """One process and our end of its pipe."""

    def __init__(self) -> None:
        self.channel, theirs = Pipe()
        # Without `site`, whose import takes as long as ten photos; the path is ours, as it is.
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r}; "
            f"from pipelines.convert.worker import main; main({theirs.fileno()})"
        )
        # A session of its own: an interrupt from the keyboard reaches only this process.
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def prepare(self, chunk: Chunk, target: Target) -> Prepared:
        """Send a chunk and wait for the answer."""
        with suppress(EOFError, ConnectionError):
            self.channel.send((chunk, target))
            answer: Prepared = self.channel.recv()
            return answer
        # Outside of the block above, so that the error does not refer to that of the pipe, which
        # holds a view of the bytes to send: Python 3.13 reports it if both are collected together.
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"code {code}"
        raise ResourceError(
            f"a worker process ended unexpectedly ({how}); signal 9 usually means that "
            "memory ran out",
            "use fewer --workers",
        )
