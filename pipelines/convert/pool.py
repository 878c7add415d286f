"""A few worker processes that answer in order, with a bounded number of chunks under way."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.convert.images import Target
from pipelines.convert.worker import Prepared, prepare
from pipelines.errors import ResourceError
from pipelines.sources import Chunk

AHEAD = 4  # chunks a worker may be ahead of the writer


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0))


class Pool:
    """Worker processes, started when they are first needed; with one worker, none at all.

    They are fresh interpreters and not forks: a fork of a process that has threads may hang, and
    a worker must notice, by the end of its channel, that the process it works for is gone.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Connection[Any, Any]] = []

    def __enter__(self) -> "Pool":
        return self

    def start(self) -> None:
        """Start the workers, so that they are ready when the first chunk comes."""
        if self.workers > 1:
            self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            if kind is not None:
                process.kill()
            process.wait()

    def map(self, chunks: Iterable[Chunk], target: Target) -> Iterator[tuple[Chunk, Prepared]]:
        """Prepare chunks in parallel and give them back in their order."""
        if self.workers <= 1:
            yield from ((chunk, prepare(chunk, target)) for chunk in chunks)
            return
        self._start()
        tasks = enumerate(chunks)
        idle = list(self._channels)
        under_way: dict[Any, tuple[int, Chunk]] = {}
        done: dict[int, tuple[Chunk, Prepared]] = {}
        following = 0  # number of the chunk to give back next
        while True:
            # One chunk a worker: then it is always listening when we send, and none waits for us.
            while idle and len(under_way) + len(done) < AHEAD * self.workers:
                task = next(tasks, None)
                if task is None:
                    break
                self._send(idle[-1], (task[1], target))
                under_way[idle.pop()] = task
            if not under_way:
                return
            for channel in wait(list(under_way)):
                number, chunk = under_way.pop(channel)
                done[number] = (chunk, self._receive(channel))
                idle.append(channel)  # type: ignore[arg-type]
                task = next(tasks, None) if len(done) < AHEAD * self.workers else None
                if task is not None:
                    self._send(idle[-1], (task[1], target))
                    under_way[idle.pop()] = task
            while following in done:
                yield done.pop(following)
                following += 1

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        # Without `site`, which takes as long as a photograph or ten; the path is ours, as it is.
        path = [root, *sys.path]
        while len(self._processes) < self.workers:
            ours, theirs = socket.socketpair()
            program = (
                f"import sys; sys.path[:] = {path!r}; "
                f"from pipelines.convert.worker import main; main({theirs.fileno()})"
            )
            # Its own session: an interrupt from the keyboard is ours to answer.
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", program],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            theirs.close()
            self._channels.append(Connection(ours.detach()))

    def _send(self, channel: Any, task: Any) -> None:
        try:
            channel.send(task)
        except ConnectionError:
            raise self._lost(channel) from None

    def _receive(self, channel: Any) -> Prepared:
        try:
            answer: Prepared = channel.recv()
        except (EOFError, ConnectionError):
            raise self._lost(channel) from None
        return answer

    def _lost(self, channel: Any) -> ResourceError:
        code = self._processes[self._channels.index(channel)].wait()
        return ResourceError(
            f"a worker process ended by itself ({'signal' if code < 0 else 'code'} {abs(code)}); "
            "signal 9 mostly means that memory ran out",
            "try again with fewer --workers",
        )
