"""Several ranks without torchrun's own start: processes forked from one that has torch already.

They join as torchrun's would, by the variables that it sets; `tests/e2e` uses torchrun itself.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runs import TINY, _server

PATIENCE = 600  # seconds after which a rank counts as hanging, on however busy a machine


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(world: int, work: Callable[..., None], *arguments: Any) -> list[Any]:
    """Start `work(rank, *arguments)` on every rank; return the processes."""
    port = free_port()
    children = [
        _server.Process(
            target=_join, args=(rank, world, port, dict(os.environ), work, *arguments), daemon=True
        )
        for rank in range(world)
    ]
    for child in children:
        child.start()
    return children


def wait(children: list[Any]) -> list[int]:
    """Wait for all ranks and return their exit codes; a hanging one fails the test."""
    for child in children:
        child.join(PATIENCE)
    hanging = [place for place, child in enumerate(children) if child.exitcode is None]
    for place in hanging:
        children[place].kill()
    assert not hanging, f"ranks {hanging} hang"
    return [child.exitcode for child in children]


def _join(
    rank: int,
    world: int,
    port: int,
    environment: dict[str, str],
    work: Callable[..., None],
    *arguments: Any,
) -> None:
    os.environ.update(environment)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(rank, *arguments)


def train(
    world: int,
    out: Path,
    *words: str,
    resume: bool = False,
    only: dict[int, list[str]] | None = None,
    before: Callable[[int], None] | None = None,
) -> list[int]:
    """Train tiny digits on several ranks; `only` gives a rank words of its own."""
    return wait(start_training(world, out, *words, resume=resume, only=only, before=before))


def start_training(
    world: int,
    out: Path,
    *words: str,
    resume: bool = False,
    only: dict[int, list[str]] | None = None,
    before: Callable[[int], None] | None = None,
) -> list[Any]:
    """Start a training and return its processes; each rank's stderr goes to OUT.rank-N."""
    return start(world, _train, str(out), list(words), resume, only or {}, before)


def _train(
    rank: int,
    out: str,
    words: list[str],
    resume: bool,
    only: dict[int, list[str]],
    before: Callable[[int], None] | None,
) -> None:
    sys.stderr = open(f"{out}.rank-{rank}", "a", buffering=1)  # noqa: SIM115
    if before:
        before(rank)
    from fastssl import cli

    arguments = ["fastssl", "train", "digits", *TINY, *words, *only.get(rank, []), "--out", out]
    sys.argv = [*arguments, "--resume"] if resume else arguments
    cli.main()


def told(out: Path, rank: int) -> str:
    """Return what a rank wrote to stderr."""
    return Path(f"{out}.rank-{rank}").read_text()


def in_double(rank: int) -> None:
    """Compute in double precision: then ranks differ from one process by rounding alone.

    In single precision equal runs part within some steps, as they do with 1 and 2 threads: the
    order of additions differs, and training amplifies it.
    """
    from fastssl import assemble

    real = assemble.build_model

    def build_model(*arguments: Any) -> Any:
        model = real(*arguments).double()
        model.register_forward_pre_hook(_widen)
        return model

    assemble.build_model = build_model


def _widen(model: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.double() for one in arguments)
