"""A case that is measured in a process of its own, where nothing of ours is set."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self


class Apart:
    """Build a case in a fresh process; calling this calls the case there and returns its value."""

    def __init__(self, make: Callable[..., Callable[[], Any]], *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, given), daemon=True)
        self.process.start()
        theirs.close()  # so that reading ends in an error when the process does

    def __call__(self) -> Any:
        """Call the case in its process."""
        self.pipe.send(None)
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError("the process of a measurement ended before its value") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self.process.join()


def _serve(pipe: Connection, make: Callable[..., Callable[[], Any]], given: Any) -> None:
    case = make(*given)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(case())
