"""A case that is measured in its own process, without our process settings."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self


class CaseProcess:
    """Builds a case in a new process; calling this object calls the case there."""

    def __init__(self, make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that recv raises EOFError when the process ends

    def __call__(self) -> Any:
        """Call the case in its process."""
        self.pipe.send(None)
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError("the process of a case ended before it returned its value") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self.process.join()


def _serve(pipe: Connection, make: Callable[..., Callable[[], Any]], arguments: Any) -> None:
    case = make(*arguments)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(case())
